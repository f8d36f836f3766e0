"""The metrics endpoint: HTTP, in a thread of its own.

Owns the listener and the hop into the event loop; knows no metric's meaning. Invariant: pool gauges are
worked out at each scrape, from one moment of the core, and a scrape never runs code of the core outside the
engine.
"""

import asyncio
import threading
from collections.abc import Iterator
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client import start_http_server as start_listener
from prometheus_client.registry import Collector

from scheduler_svc.engine import Engine
from scheduler_svc.families import families
from scheduler_svc.metrics import ShellMetrics

_ANSWER_SECONDS = 5.0


class EngineCollector(Collector):
    """Asks the engine at each scrape."""

    def __init__(self, engine: Engine, shell: ShellMetrics, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._shell = shell
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """All families. Raises TimeoutError when the engine does not answer, so that the scrape fails."""
        question = self._engine.ask(lambda core: (core.stats(), self._engine.worker, self._engine.ready))
        answer = asyncio.run_coroutine_threadsafe(question, self._loop)
        stats, worker, ready = answer.result(_ANSWER_SECONDS)
        return families(stats, worker, ready, self._shell)


class MetricsEndpoint:
    """Serves /metrics from `start` to `stop`."""

    def __init__(self, engine: Engine, shell: ShellMetrics) -> None:
        self._engine = engine
        self._shell = shell
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int, loop: asyncio.AbstractEventLoop) -> int:
        """Listens; returns the port, which the system picks for 0. Raises OSError when it is taken."""
        registry = CollectorRegistry(auto_describe=False)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        registry.register(EngineCollector(self._engine, self._shell, loop))
        try:
            self._server, self._thread = start_listener(port, host, registry)
        except OSError as error:
            raise OSError(f"metrics_port: {host}:{port}: {error.strerror}") from error
        return int(self._server.server_port)

    def stop(self) -> None:
        """Closes the listener. Idempotent."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

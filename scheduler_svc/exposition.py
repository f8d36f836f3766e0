"""The metrics as a web application.

Owns the hop from a scrape into the event loop; knows no metric's meaning. Invariant: pool gauges are worked
out at each scrape, from one moment of the core, and a scrape never runs code of the core outside the engine.
"""

import asyncio
from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
    make_wsgi_app,
)
from prometheus_client.registry import Collector

from scheduler_svc.engine import Engine
from scheduler_svc.families import families
from scheduler_svc.listener import WsgiApp
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


def metrics_app(engine: Engine, shell: ShellMetrics, loop: asyncio.AbstractEventLoop) -> WsgiApp:
    """Answers every path with all metrics of the process."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    registry.register(EngineCollector(engine, shell, loop))
    app: WsgiApp = make_wsgi_app(registry)
    return app

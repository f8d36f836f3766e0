"""What the HTTP port serves: metrics, and the pool page where it is on.

Owns the split by path; knows neither content. Invariant: whatever is not the pool page's is the metrics'.
"""

import asyncio
from collections.abc import Callable, Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

from scheduler_svc.engine import Engine
from scheduler_svc.exposition import metrics_app
from scheduler_svc.inspect import KvCacheService
from scheduler_svc.listener import Listener
from scheduler_svc.metrics import ShellMetrics
from scheduler_svc.pool_page.site import ROOT, PoolSite


class WebEndpoint:
    """Serves from `start` to `stop`. pool_page: whether the page is served. token: empty for none."""

    def __init__(
        self,
        engine: Engine,
        inspector: KvCacheService,
        shell: ShellMetrics,
        clock: Callable[[], float],
        pool_page: bool,
        token: str,
    ) -> None:
        self._engine = engine
        self._inspector = inspector
        self._shell = shell
        self._clock = clock
        self._pool_page = pool_page
        self._token = token
        self._site: PoolSite | None = None
        self._listener: Listener | None = None

    def start(self, host: str, port: int, loop: asyncio.AbstractEventLoop) -> int:
        """Listens; returns the port, which the system picks for 0. Raises OSError when it is taken."""
        metrics = metrics_app(self._engine, self._shell, loop)
        if self._pool_page:
            self._site = PoolSite(self._engine, self._inspector, loop, self._clock, self._token)
        site = self._site

        def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "")
            if path != ROOT and not path.startswith(f"{ROOT}/"):
                return metrics(environ, start_response)
            if site is not None:
                return site(environ, start_response)
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"the pool page is off: --no-pool-page\n"]

        self._listener = Listener(app)
        try:
            return self._listener.start(host, port)
        except OSError as error:
            where = f"--metrics-port {port}: {host}:{port}"
            raise OSError(f"{where} cannot be bound: {error.strerror}") from error

    def stop(self) -> None:
        """Closes the listener and ends the streams. Idempotent."""
        if self._site is not None:
            self._site.stop()
        if self._listener is not None:
            self._listener.stop()

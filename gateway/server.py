"""The HTTP server process: socket, serving line, signals, drain.

Owns uvicorn; knows no endpoint. Invariant: the serving line is written once the address takes connections,
and a signal lets running requests finish within the drain time, then the process ends with status 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from gateway.app import build_app
from gateway.auth import ApiKeys
from gateway.config import Settings
from gateway.connection import connection_class
from gateway.key_file import keys_in
from octavo import logging as octavo_logging
from octavo import transport
from octavo_client.aio import AsyncClient

if TYPE_CHECKING:
    from gateway.tracing import GatewayTracing

SERVICE = "gateway"
_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048
_FILES = 1 << 16
_log = logging.getLogger(__name__)


def run(settings: Settings) -> int:
    """Serves until a signal. Returns the exit status."""
    octavo_logging.configure(SERVICE, settings.log_level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    _allow_many_connections()
    try:
        keys = ApiKeys(() if settings.api_key_file is None else keys_in(settings.api_key_file))
        with _bound(settings) as sock:
            return uvloop.run(_serve(settings, keys, sock))
    except (OSError, ValueError) as error:
        _log.critical("cannot serve: %s", error)
        return 1


def _allow_many_connections() -> None:
    """A connection is an open file, and 1024 is the soft limit of many systems: takes the hard one's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: Settings, keys: ApiKeys, sock: socket.socket) -> int:
    app = build_app(settings, AsyncClient(settings.server), keys, _open_tracing(settings))
    config = uvicorn.Config(
        app,
        http=connection_class(settings),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
        lifespan="on",
        ws="none",
    )
    server = _Server(config, transport.bound_address(settings.listen, sock.getsockname()[1]))
    await server.serve(sockets=[sock])
    return 0 if server.started else 1


def _open_tracing(settings: Settings) -> GatewayTracing | None:
    """Spans go to the endpoint; None without one. The tracing library is imported only then."""
    if not settings.otlp_traces_endpoint:
        return None
    from gateway.tracing import GatewayTracing
    from octavo.tracing import Tracing

    return GatewayTracing(Tracing(SERVICE, settings.otlp_traces_endpoint))


class _Server(uvicorn.Server):
    """Announces itself, and ends with status 0 after a signal in place of raising it again."""

    def __init__(self, config: uvicorn.Config, address: str) -> None:
        super().__init__(config)
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            octavo_logging.announce_serving(SERVICE, self._address, int(self._address.rpartition(":")[2]))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        yield

    def _stop(self) -> None:
        """The first signal drains, the second ends at once."""
        if self.should_exit:
            self.force_exit = True
        else:
            _log.info("draining")
        self.should_exit = True


@contextlib.contextmanager
def _bound(settings: Settings) -> Iterator[socket.socket]:
    """The listening socket. Raises OSError naming the setting."""
    address = settings.listen
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, int(port)))
            sock.listen(_BACKLOG)
        except OSError as error:
            why = error.strerror or error
            raise OSError(f"{settings.given('listen')}: cannot be bound: {why}") from error
        yield sock

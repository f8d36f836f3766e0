"""The HTTP listener: threads of its own, beside the event loop.

Owns the socket and the life of its threads; knows no path's meaning. Invariant: a client that neither sends
nor reads is let go after a bounded time, and writes nothing into the log but a line.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import IO, cast
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

_log = logging.getLogger(__name__)
IDLE_SECONDS = 30.0
"""Longest silence of a client, reading or writing."""

SEND_BUFFER_BYTES = 1 << 17
"""What the system may hold for a client that does not read: a stream's writer then waits for its reader."""

WsgiApp = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]


class _Answer(ServerHandler):
    def log_exception(self, exc_info: object) -> None:
        kind, error, _ = exc_info if isinstance(exc_info, tuple) else (None, None, None)
        _log.info("HTTP answer cut short: %s: %s", getattr(kind, "__name__", kind), error)


class _Handler(WSGIRequestHandler):
    timeout = IDLE_SECONDS

    def setup(self) -> None:
        super().setup()
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def handle(self) -> None:
        """One request a connection."""
        try:
            self.raw_requestline = self.rfile.readline(65537)
            if len(self.raw_requestline) > 65536 or not self.raw_requestline or not self.parse_request():
                return
        except OSError:
            return
        reads, writes = cast(IO[bytes], self.rfile), cast(IO[bytes], self.wfile)
        answer = _Answer(reads, writes, self.get_stderr(), self.get_environ(), multithread=True)
        answer.request_handler = self  # type: ignore[attr-defined]  # wsgiref logs through it
        answer.run(self.server.get_app())  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: object) -> None:
        _log.debug(format, *args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Listener:
    """Serves a WSGI application from `start` to `stop`."""

    def __init__(self, app: WsgiApp) -> None:
        self._app = app
        self._server: WSGIServer | None = None

    def start(self, host: str, port: int) -> int:
        """Listens; returns the port, which the system picks for 0. Raises OSError when it is taken."""
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = type("_Server", (_Server,), {"address_family": family})
        self._server = make_server(host, port, self._app, kind, _Handler)
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()
        return int(self._server.server_port)

    def stop(self) -> None:
        """Closes the listener. Idempotent."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

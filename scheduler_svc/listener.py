"""The HTTP listener: threads of its own, beside the event loop.

Owns the socket and the life of its threads; knows no path's meaning. Invariant: a client that neither sends
nor reads is let go after a bounded time, and writes nothing into the log but a line.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from io import BufferedReader, RawIOBase
from socketserver import ThreadingMixIn
from typing import IO, TYPE_CHECKING, cast
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger(__name__)
IDLE_SECONDS = 30.0
"""Longest time for a request's head, and longest silence of a client that reads its answer."""

SEND_BUFFER_BYTES = 1 << 17
"""What the system may hold for a client that does not read: a stream's writer then waits for its reader."""

WsgiApp = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]


class _Answer(ServerHandler):
    def log_exception(self, exc_info: object) -> None:
        kind, error, _ = exc_info if isinstance(exc_info, tuple) else (None, None, None)
        _log.info("HTTP answer cut short: %s: %s", getattr(kind, "__name__", kind), error)


class _UntilLate(RawIOBase):
    """What a client sends, for so many seconds in all: whoever trickles is no better than the silent."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Buffer") -> int:
        """Raises TimeoutError once the time is over."""
        self._connection.settimeout(max(0.001, self._end - time.monotonic()))
        return self._connection.recv_into(buffer)


class _Handler(WSGIRequestHandler):
    timeout = IDLE_SECONDS

    def setup(self) -> None:
        super().setup()
        assert self.timeout is not None
        self.rfile = BufferedReader(_UntilLate(self.connection, self.timeout))
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def handle(self) -> None:
        """One request a connection."""
        try:
            self.raw_requestline = self.rfile.readline(65537)
            if len(self.raw_requestline) > 65536 or not self.raw_requestline or not self.parse_request():
                return
        except OSError:
            return
        self.connection.settimeout(self.timeout)
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

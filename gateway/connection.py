"""One connection of a client: its head, and a client that does not send or does not read.

Owns what no request can be held to yet (the head's size and time) or any more (bytes that nobody reads);
knows no endpoint. Invariant: whatever a client does or leaves undone, its connection ends by itself, and one
that waits for a request holds no more than a head.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.config import Settings
from gateway.errors import ApiError
from gateway.exchange import encode

MAX_HEAD_BYTES = 1 << 16
"""Of a request's line and headers."""
_LINE_MARKS, _HEADER_MARKS = len(b"  HTTP/1.1\r\n"), len(b": \r\n")
_HIGH, _LOW = 1 << 16, 7 << 13
"""Unread bytes at which an answer waits, and at which it goes on."""


class Connection(HttpToolsProtocol):
    """uvicorn's, bounded. Make a class of it with `connection_class`."""

    head_seconds: float
    stall_seconds: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(_HIGH, _LOW)
        self._cycles: list[RequestResponseCycle] = []
        """Requests without a whole answer, the first of them at work: uvicorn looks after the last alone."""
        self._in_head = True
        self._head_bytes = self._parsed_bytes = 0
        self._stall: asyncio.TimerHandle | None = None
        self._late: asyncio.TimerHandle | None = None
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle in self._cycles:
            self._give_up(cycle)
        self._head_came()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._is_idle():
            self._wait_for_head()
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        too_many = self._head_bytes > MAX_HEAD_BYTES + len(b"\r\n")  # the empty line may be half here
        if self._in_head and too_many and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._parsed_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """What comes after a body is counted too, and is no header."""
        self._count(len(name) + len(value) + _HEADER_MARKS)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._count(len(self.parser.get_method()) + _LINE_MARKS)
        self._in_head, self._head_bytes = False, 0
        self._head_came()
        super().on_headers_complete()
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete] + [self.cycle]

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._linger()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._linger()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_in_time()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP at all in OpenAI's shape too."""
        if self._parsed_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
            return
        self._refuse(HTTPStatus.BAD_REQUEST, "the request is not valid HTTP/1.1")

    def _is_idle(self) -> bool:
        """Whether nobody works on an answer."""
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _head_came(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _head_is_late(self) -> None:
        self._late = None
        if not self.transport.is_closing() and self._is_idle():
            seconds = f"{self.head_seconds:g} s"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the request's head was not complete after {seconds}")

    def _count(self, size: int) -> None:
        """Raises ValueError, which ends the parsing, past the limit of a head. One that comes whole is never
        seen unfinished: it is refused for the same bytes as one that comes in pieces.
        """
        self._parsed_bytes += size
        if self._parsed_bytes > MAX_HEAD_BYTES:
            raise ValueError

    def _refuse_head(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the request's line and headers have more than {MAX_HEAD_BYTES} bytes",
        )

    @staticmethod
    def _give_up(cycle: RequestResponseCycle) -> None:
        """Tells whoever works on an answer that its client is gone."""
        if not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _takes_a_body(self) -> bool:
        """Whether the request at work is still coming, and nothing was answered."""
        return not self.pipeline and self.cycle.more_body and not self.cycle.response_started

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answers and closes; where another answer is under way, closes alone."""
        if not self._is_idle():
            if not self._takes_a_body():
                self.transport.abort()
                return
            self._give_up(self.cycle)
        body = encode(ApiError(status, message).body)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
        self._linger()

    def _linger(self) -> None:
        """What is closed with unread bytes waits for its client, but not for ever."""
        if self.transport.is_closing():
            self._abort_in_time()

    def _abort_in_time(self) -> None:
        if self._stall is None:
            self._stall = self.loop.call_later(self.stall_seconds, self._abort_unless_read, self._unread())

    def _abort_unless_read(self, before: int) -> None:
        """Aborts where the client has taken nothing. Nobody writes, so what is unread only shrinks."""
        self._stall = None
        if self._unread() < before:
            self._abort_in_time()
        else:
            self.transport.abort()

    def _unread(self) -> int:
        """Bytes that wait here or in the system, which may hold megabytes before it takes more of ours."""
        size = self.transport.get_write_buffer_size()
        try:
            queued = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            return size
        return size + int.from_bytes(queued, sys.byteorder)


def connection_class(settings: Settings) -> type[Connection]:
    """The protocol of a server with these settings."""
    bounds = {"head_seconds": settings.body_seconds, "stall_seconds": settings.stall_seconds}
    return type("BoundedConnection", (Connection,), bounds)

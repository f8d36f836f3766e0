"""One HTTP exchange: the body in, JSON or server-sent events out, and the client that goes away.

Owns the bytes on the wire; knows no endpoint. Invariant: work for a client that is gone is cancelled at once,
and an answer that has begun ends with an error event, never with a status.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.body_room import BodyRoom
from gateway.errors import ApiError

REQUEST_ID = "x-request-id"
_DISCARDED = 4
"""A body of up to so many times the limit is read to its end, and forgotten, before it is refused: a client
that is still sending would see a broken connection in place of the answer.
"""
_EVENT_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


class Exchange:
    """What a handler talks to. key: the API key that was accepted, empty without keys."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.headers = Headers(scope=scope)
        self.path_params: Mapping[str, str] = scope.get("path_params", {})
        self.body = b""
        self.when_parsed: Callable[[], None] | None = None
        """Called once the body is needed no more."""
        self.key = ""
        self.status = 0
        """The status that was sent; 0 while none was."""
        self.failed = False
        """Whether an answer that had begun ended with an error."""
        self.answer_headers: dict[str, str] = {}
        """Headers of whatever is answered."""
        self._send = send

    def drop_body(self) -> None:
        """Forgets the body. A stream outlives it by far. Idempotent."""
        self.body = b""
        if self.when_parsed is not None:
            self.when_parsed()
            self.when_parsed = None

    async def json(self, value: object, status: int = HTTPStatus.OK) -> None:
        """A whole answer."""
        await self.send_whole(encode(value), "application/json", status)

    async def send_whole(self, body: bytes, content_type: str, status: int = HTTPStatus.OK) -> None:
        """A whole answer of another type."""
        headers = {"content-type": content_type, "content-length": str(len(body)), **self.answer_headers}
        await self._start(int(status), headers)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def event(self, value: object) -> None:
        """One server-sent event of JSON; the first begins the answer. Waits for a slow reader."""
        if not self.status:
            await self._start(int(HTTPStatus.OK), {**_EVENT_HEADERS, **self.answer_headers})
        await self._write(b"data: " + encode(value) + b"\n\n", more=True)

    async def done(self) -> None:
        """Ends a stream of events as OpenAI does."""
        await self._write(b"data: [DONE]\n\n", more=False)

    async def refuse(self, error: ApiError) -> None:
        """Answers with an error; a stream that has begun gets it as its last event, and no [DONE]."""
        if not self.status:
            self.answer_headers |= error.headers
            await self.json(error.body, error.status)
            return
        self.failed = True
        await self._write(b"data: " + encode(error.body) + b"\n\n", more=False)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _write(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def encode(value: object) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


async def read_body(
    headers: Headers, receive: Receive, limit: int, seconds: float, room: BodyRoom
) -> tuple[bytes, int]:
    """The body of a request of JSON, and what it holds of the room, to be given back. Raises ApiError (400,
    408, 413, 415, 503) and ClientGone.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        what = f"{kind[:64]!r}" if kind else "missing"
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"content-type is {what}, must be application/json")
    transfer = headers.get("transfer-encoding", "chunked").strip().lower()
    if transfer != "chunked":
        message = f"transfer-encoding is {transfer[:64]!r}, must be chunked"
        raise ApiError(HTTPStatus.BAD_REQUEST, message, headers={"connection": "close"})
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"content-encoding is {coding[:64]!r}, must be identity: bodies are not decompressed",
            headers={"accept-encoding": "identity"},
        )
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > _DISCARDED * limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(seconds):
            return await _receive_all(receive, limit, room)
    except TimeoutError:
        message = f"the body was not complete after {seconds:g} s"
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, message, headers={"connection": "close"}) from None


async def _receive_all(receive: Receive, limit: int, room: BodyRoom) -> tuple[bytes, int]:
    parts, size, held = list[bytes](), 0, 0
    with ExitStack() as undo:
        undo.callback(lambda: room.give(held))
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body = message.get("body", b"")
            size += len(body)
            if size <= limit:
                held = room.grow(held, size)
                parts.append(body)
            else:
                parts.clear()
            if size > _DISCARDED * limit:
                raise _too_large(limit)
            if not message.get("more_body", False):
                break
        if size > limit:
            raise _too_large(limit)
        undo.pop_all()
    return b"".join(parts), held


def _too_large(limit: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body has more than {limit} bytes",
        headers={"connection": "close"},
    )


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Does the work; cancels it, waits for its end, and raises ClientGone when the client leaves first."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        task.result()
    finally:
        for started in (task, watch):
            started.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

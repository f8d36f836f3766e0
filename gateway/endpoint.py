"""What every endpoint does around its own work: key, body, errors, the client that leaves, metrics.

Owns the order of these steps; knows no endpoint. Invariant: each exchange is counted once, and whatever an
OctavoError or ApiError was raised by, the client gets a body in OpenAI's shape.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from gateway.auth import ApiKeys
from gateway.body_room import BodyRoom
from gateway.config import Settings
from gateway.errors import ApiError, from_octavo
from gateway.exchange import ClientGone, Exchange, read_body, while_connected
from gateway.metrics import DISCONNECTED, STREAM_FAILED, Metrics
from octavo.errors import OctavoError
from octavo.trace_context import TRACEPARENT, accepted, current_traceparent

if TYPE_CHECKING:
    from gateway.tracing import GatewayTracing

Handler = Callable[[Exchange], Awaitable[None]]


class Endpoint:
    """An ASGI application. open: needs no API key. takes_body: reads a body of JSON first.

    tracing: spans of exchanges; None: none, and a client's trace context is handed on as it is.
    """

    def __init__(
        self,
        route: str,
        handler: Handler,
        settings: Settings,
        keys: ApiKeys,
        metrics: Metrics,
        room: BodyRoom,
        *,
        is_open: bool = False,
        takes_body: bool = False,
        tracing: GatewayTracing | None = None,
    ) -> None:
        self._route = route
        self._handler = handler
        self._settings = settings
        self._keys = keys
        self._metrics = metrics
        self._room = room
        self._is_open = is_open
        self._takes_body = takes_body
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, send)
        began = time.monotonic()
        outcome = "500"
        self._metrics.began(self._route)
        current_traceparent.set(accepted(exchange.headers.get(TRACEPARENT)))
        span = None
        if self._tracing is not None:
            span = self._tracing.began(str(scope["method"]), self._route, began)
        try:
            outcome = await self._answer(exchange, receive)
        finally:
            now = time.monotonic()
            self._metrics.ended(self._route, outcome, now - began)
            if self._tracing is not None and span is not None:
                self._tracing.ended(span, exchange, outcome, now)

    async def _answer(self, exchange: Exchange, receive: Receive) -> str:
        try:
            await self._work(exchange, receive)
        except ClientGone:
            return DISCONNECTED
        except ApiError as error:
            await exchange.refuse(error)
        except OctavoError as error:
            await exchange.refuse(from_octavo(error))
        return STREAM_FAILED if exchange.failed else str(exchange.status)

    async def _work(self, exchange: Exchange, receive: Receive) -> None:
        if not self._is_open:
            exchange.key = self._keys.check(exchange.headers)
        if self._takes_body:
            limit, seconds = self._settings.max_body_bytes, self._settings.body_seconds
            exchange.body, held = await read_body(exchange.headers, receive, limit, seconds, self._room)
            exchange.when_parsed = partial(self._room.give, held)
        try:
            await while_connected(receive, self._handle(exchange))
        finally:
            exchange.drop_body()

    async def _handle(self, exchange: Exchange) -> None:
        await self._handler(exchange)

"""What every endpoint does around its own work: key, body, errors, the client that leaves, metrics.

Owns the order of these steps; knows no endpoint. Invariant: each exchange is counted once, and whatever an
OctavoError or ApiError was raised by, the client gets a body in OpenAI's shape.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from gateway.auth import ApiKeys
from gateway.config import Settings
from gateway.errors import ApiError, from_octavo
from gateway.exchange import ClientGone, Exchange, read_body, while_connected
from gateway.metrics import DISCONNECTED, STREAM_FAILED, Metrics
from octavo.errors import OctavoError

Handler = Callable[[Exchange], Awaitable[None]]


class Endpoint:
    """An ASGI application. open: needs no API key. takes_body: reads a body of JSON first."""

    def __init__(
        self,
        route: str,
        handler: Handler,
        settings: Settings,
        keys: ApiKeys,
        metrics: Metrics,
        *,
        is_open: bool = False,
        takes_body: bool = False,
    ) -> None:
        self._route = route
        self._handler = handler
        self._settings = settings
        self._keys = keys
        self._metrics = metrics
        self._is_open = is_open
        self._takes_body = takes_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, send)
        began = time.monotonic()
        outcome = "500"
        self._metrics.began(self._route)
        try:
            outcome = await self._answer(exchange, receive)
        finally:
            self._metrics.ended(self._route, outcome, time.monotonic() - began)

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
            exchange.body = await read_body(exchange.headers, receive, limit, seconds)
        await while_connected(receive, self._handle(exchange))

    async def _handle(self, exchange: Exchange) -> None:
        await self._handler(exchange)

"""The HTTP application: which path is which endpoint.

Owns the routes and the answers outside of them (unknown path, wrong method, our own faults); knows no
endpoint's work. Invariant: every answer that is not a success has a body in OpenAI's shape.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.auth import ApiKeys
from gateway.body_room import BodyRoom
from gateway.chat import ChatCompletions
from gateway.completions import Completions
from gateway.config import Settings
from gateway.endpoint import Endpoint, Handler
from gateway.errors import INVALID, SERVER, ErrorBody, ErrorObject
from gateway.exchange import encode
from gateway.gate import Gate
from gateway.metrics import Metrics
from gateway.openapi import document
from gateway.others import Others
from octavo.interceptors import INTERNAL_TEXT
from octavo_client.aio import AsyncClient

if TYPE_CHECKING:
    from gateway.tracing import GatewayTracing


def build_app(
    settings: Settings, client: AsyncClient, keys: ApiKeys, tracing: GatewayTracing | None = None
) -> Starlette:
    """The application in front of a client, which it closes at its end. Call it inside the running loop.

    tracing: spans of exchanges, closed at its end too; None: none.
    """
    gate = Gate(settings, client)
    metrics = Metrics()
    room = BodyRoom(settings.max_body_bytes)
    others = Others(gate, metrics, document(with_keys=keys.required))

    def route(path: str, method: str, handler: Handler, *, is_open: bool = False) -> Route:
        endpoint = Endpoint(
            path,
            handler,
            settings,
            keys,
            metrics,
            room,
            is_open=is_open,
            takes_body=method == "POST",
            tracing=None if is_open else tracing,
        )
        return Route(path.replace("{model}", "{model:path}"), endpoint, methods=[method])

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await client.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

    app = Starlette(
        routes=[
            route("/v1/models", "GET", others.models),
            route("/v1/models/{model}", "GET", others.model),
            route("/v1/completions", "POST", Completions(gate)),
            route("/v1/chat/completions", "POST", ChatCompletions(gate)),
            route("/tokenize", "POST", others.tokenize),
            route("/detokenize", "POST", others.detokenize),
            route("/health", "GET", others.health, is_open=True),
            route("/metrics", "GET", others.metrics, is_open=True),
            route("/openapi.json", "GET", others.document, is_open=True),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _fault},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """An unknown path, or a method that a path does not take."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return _error(error.status_code, "the method is not one of this path", INVALID, error.headers)
    return _error(
        error.status_code, "there is no such path; /openapi.json lists them", INVALID, error.headers
    )


async def _fault(request: Request, error: Exception) -> Response:
    """Our own fault; the server logs the exception."""
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL_TEXT, SERVER, None)


def _error(status: int, message: str, kind: str, headers: object) -> Response:
    body = ErrorBody(error=ErrorObject(message=message, type=kind, param=None, code=None))
    response = Response(encode(body), int(status), media_type="application/json")
    if isinstance(headers, dict):
        response.headers.update(headers)
    return response

"""Server interceptor: every call gets an id, and every failure a status that a program can read.

Owns the mapping from exceptions to statuses at the edge; knows no method. Invariant: an OctavoError leaves
as its rich status, a cancellation as such, anything else as INTERNAL with a fixed text.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, cast

import grpc
import grpc.aio
from grpc_status import rpc_status

from octavo.errors import Internal, OctavoError, to_status
from octavo.logging import current_request_id
from octavo.trace_context import current_traceparent, from_metadata

REQUEST_ID_METADATA = "x-request-id"
INTERNAL_TEXT = "internal error; the service's log has the cause under this call's id"

_log = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any, Context], Any]


class ErrorMapping(grpc.aio.ServerInterceptor):
    """Gives each call an id (the caller's x-request-id, or a random one) for the logs, and maps its
    exceptions.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        behaviour, factory = _parts(handler)
        wrap = _mapped_stream if handler.response_streaming else _mapped_unary
        return cast(
            "grpc.RpcMethodHandler[Any, Any]",
            factory(
                wrap(behaviour, handler_call_details.method),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            ),
        )


def _parts(handler: Any) -> tuple[Behaviour, Callable[..., Any]]:
    if handler.request_streaming and handler.response_streaming:
        return handler.stream_stream, grpc.stream_stream_rpc_method_handler
    if handler.request_streaming:
        return handler.stream_unary, grpc.stream_unary_rpc_method_handler
    if handler.response_streaming:
        return handler.unary_stream, grpc.unary_stream_rpc_method_handler
    return handler.unary_unary, grpc.unary_unary_rpc_method_handler


def _mapped_unary(behaviour: Behaviour, method: str) -> Behaviour:
    async def call(request: Any, context: Context) -> Any:
        _name_call(context)
        try:
            return await behaviour(request, context)
        except Exception as error:  # noqa: BLE001  the edge: whatever it is becomes a status
            await _abort(error, context, method)

    return call


def _mapped_stream(behaviour: Behaviour, method: str) -> Behaviour:
    generates = inspect.isasyncgenfunction(behaviour)

    async def call(request: Any, context: Context) -> None:
        _name_call(context)
        try:
            if generates:
                async for message in cast(AsyncIterator[Any], behaviour(request, context)):
                    await context.write(message)
            else:
                await behaviour(request, context)
        except Exception as error:  # noqa: BLE001  the edge: whatever it is becomes a status
            await _abort(error, context, method)

    return call


def _name_call(context: Context) -> None:
    metadata: Any = context.invocation_metadata()
    current_traceparent.set(from_metadata(metadata))
    given = dict(metadata or ()).get(REQUEST_ID_METADATA, "")
    text = given if isinstance(given, str) else ""
    current_request_id.set(text[:128] or secrets.token_hex(8))


async def _abort(error: Exception, context: Context, method: str) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if context.done() or context.cancelled():
        raise asyncio.CancelledError from error
    if not isinstance(error, OctavoError):
        _log.error("%s failed", method, exc_info=error)
        error = Internal(INTERNAL_TEXT)
    await context.abort_with_status(rpc_status.to_status(to_status(error)))
    raise AssertionError("abort_with_status returns")

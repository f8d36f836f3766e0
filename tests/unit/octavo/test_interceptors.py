"""What leaves a server when a method raises: a rich status, never an exception's text."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from octavo.errors import InvalidArgument, ResourceExhausted, reason_of
from octavo.interceptors import INTERNAL_TEXT, REQUEST_ID_METADATA, ErrorMapping
from octavo.logging import current_request_id

SECRET = "the prompt was: hush"
seen_ids: list[str] = []


def fail(kind: bytes) -> None:
    seen_ids.append(current_request_id.get())
    if kind == b"octavo":
        raise InvalidArgument("n: 0 is out of [1, 64]", field="n")
    if kind == b"retry":
        raise ResourceExhausted("full", retry_after=2.5)
    if kind == b"bug":
        raise KeyError(SECRET)
    if kind == b"cancel":
        raise asyncio.CancelledError


async def unary(request: bytes, context: Any) -> bytes:
    if request == b"abort":
        await context.abort(grpc.StatusCode.NOT_FOUND, "as it is")
    fail(request)
    return b"ok"


async def generator(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield b"first"
    fail(request)


async def writer(request: bytes, context: Any) -> None:
    await context.write(b"first")
    fail(request)


async def both(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield b"first"
        fail(request)


async def collects(requests: AsyncIterator[bytes], context: Any) -> bytes:
    async for request in requests:
        fail(request)
    return b"ok"


class Methods(grpc.GenericRpcHandler):
    def service(self, details: Any) -> Any:
        return {
            "/t/unary": grpc.unary_unary_rpc_method_handler(unary),
            "/t/generator": grpc.unary_stream_rpc_method_handler(generator),
            "/t/writer": grpc.unary_stream_rpc_method_handler(writer),
            "/t/both": grpc.stream_stream_rpc_method_handler(both),
            "/t/collects": grpc.stream_unary_rpc_method_handler(collects),
        }.get(details.method)


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=[ErrorMapping()])
    server.add_generic_rpc_handlers((Methods(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    await server.stop(None)


METHODS = ["unary", "generator", "writer", "both", "collects"]


async def call(channel: Any, method: str, request: bytes, **options: Any) -> list[bytes]:
    """All messages that come back. Raises AioRpcError."""

    async def requests() -> AsyncIterator[bytes]:
        yield request

    path = f"/t/{method}"
    if method == "unary":
        return [await channel.unary_unary(path)(request, **options)]
    if method == "collects":
        return [await channel.stream_unary(path)(requests(), **options)]
    if method == "both":
        return [message async for message in channel.stream_stream(path)(requests(), **options)]
    return [message async for message in channel.unary_stream(path)(request, **options)]


@pytest.mark.parametrize("method", METHODS)
async def test_an_error_of_the_tree_leaves_with_its_status_and_reason(
    channel: grpc.aio.Channel, method: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(channel, method, b"octavo")
    assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert failed.value.details() == "n: 0 is out of [1, 64]"
    assert reason_of(failed.value) == "INVALID_FIELD"


@pytest.mark.parametrize("method", METHODS)
async def test_any_other_exception_is_internal_without_its_text(
    channel: grpc.aio.Channel, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(channel, method, b"bug")
    assert failed.value.code() == grpc.StatusCode.INTERNAL
    assert failed.value.details() == INTERNAL_TEXT
    assert SECRET not in str(failed.value)
    assert reason_of(failed.value) == "INTERNAL"
    assert any(f"/t/{method} failed" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("method", METHODS)
async def test_a_good_call_passes_through(channel: grpc.aio.Channel, method: str) -> None:
    assert await call(channel, method, b"fine") == [b"ok" if method in ("unary", "collects") else b"first"]


async def test_a_status_that_a_method_chose_stays(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(channel, "unary", b"abort")
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.NOT_FOUND, "as it is")


async def test_a_delay_before_a_retry_crosses(channel: grpc.aio.Channel) -> None:
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(channel, "unary", b"retry")
    info = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(info) for detail in rpc_status.from_call(failed.value).details)
    assert info.retry_delay.ToTimedelta().total_seconds() == 2.5


async def test_the_caller_s_id_names_the_call_in_the_logs(channel: grpc.aio.Channel) -> None:
    seen_ids.clear()
    await call(channel, "unary", b"fine", metadata=((REQUEST_ID_METADATA, "mine"),))
    await call(channel, "unary", b"fine")
    await call(channel, "unary", b"fine", metadata=((REQUEST_ID_METADATA, "x" * 500),))
    assert seen_ids[0] == "mine"
    assert len(seen_ids[1]) == 16
    assert seen_ids[2] == "x" * 128

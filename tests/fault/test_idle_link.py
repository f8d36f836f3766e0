"""A24: a stream on which nothing happens for long stays open, for the pings of its ends agree."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from octavo import transport

SECONDS = 6.0
"""Some dozen of the client's shortened pings: a server gives up after three that come too early."""

LONGEST = 60.0
"""Until those three have come on a slow machine."""


async def watch_in_silence(
    monkeypatch: pytest.MonkeyPatch, accepted: float, seconds: float
) -> grpc.aio.AioRpcError | None:
    """What ended a stream that says nothing after its first message; None: it outlived `seconds` and is told
    the next news. accepted: seconds between pings that the server takes.
    """
    monkeypatch.setattr(transport, "CLIENT_PING_SECONDS", 0.4)
    monkeypatch.setattr(transport, "SERVER_PING_SECONDS", 60)
    monkeypatch.setattr(transport, "ACCEPTED_PING_SECONDS", accepted)
    server = grpc.aio.server(
        options=[(name, int(value)) for name, value in transport.server_options(1 << 20)]
    )
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = [(name, int(value)) for name, value in transport.client_options(1 << 20)]
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="a"))
            assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            try:
                news = asyncio.ensure_future(call.read())
                await asyncio.wait({news}, timeout=seconds)
                if news.done():
                    news.result()
                await servicer.set("a", health_pb2.HealthCheckResponse.SERVING)
                assert (await news).status == health_pb2.HealthCheckResponse.SERVING
            except grpc.aio.AioRpcError as error:
                return error
            return None
    finally:
        await server.stop(0)


async def test_a24_a_quiet_stream_outlives_its_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real settings leave the same room: 10 s between pings, 5 s accepted."""
    assert transport.CLIENT_PING_SECONDS >= 2 * transport.ACCEPTED_PING_SECONDS
    assert await watch_in_silence(monkeypatch, accepted=0.2, seconds=SECONDS) is None


async def test_a24_pings_that_a_server_does_not_accept_end_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the test above can fail."""
    ended = await watch_in_silence(monkeypatch, accepted=30.0, seconds=LONGEST)
    assert ended is not None
    assert "too_many_pings" in str(ended) or ended.code() is grpc.StatusCode.UNAVAILABLE

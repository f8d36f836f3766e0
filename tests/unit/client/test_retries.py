"""What is sent again by itself, and what never is: by gRPC's own service config, in both clients."""

import pytest

from octavo_client import AsyncClient, Client
from octavo_client.errors import ConnectionFailed, ResourceExhausted, Unavailable
from octavo_client.types import Finished
from tests.unit.client.stub import StubScheduler


def test_a_call_refused_as_unavailable_is_sent_again(stub: StubScheduler) -> None:
    with Client(stub.address) as client:
        events = list(client.stream("flaky but fine"))
    assert isinstance(events[-1], Finished)
    assert len(stub.seen) == 3


async def test_so_it_is_asynchronously(stub: StubScheduler) -> None:
    async with AsyncClient(stub.address) as client:
        events = [event async for event in client.stream("flaky but fine")]
    assert isinstance(events[-1], Finished)
    assert len(stub.seen) == 3


def test_one_that_stays_unavailable_is_given_up(stub: StubScheduler) -> None:
    with Client(stub.address) as client, pytest.raises(Unavailable) as failed:
        client.generate("lost")
    assert failed.value.reason == "WORKER_LOST"
    assert len(stub.seen) == 4


def test_a_stream_that_has_begun_is_never_sent_again(stub: StubScheduler) -> None:
    with Client(stub.address) as client, pytest.raises(ConnectionFailed):
        list(client.stream("a b break"))
    assert len(stub.seen) == 1


def test_other_refusals_are_the_caller_s_to_repeat(stub: StubScheduler) -> None:
    with Client(stub.address) as client, pytest.raises(ResourceExhausted):
        client.generate("full")
    assert len(stub.seen) == 1

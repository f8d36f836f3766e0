"""The asynchronous client against a stub scheduler."""

from collections.abc import AsyncIterator

import pytest

from octavo_client import AsyncClient
from octavo_client import errors as e
from octavo_client.types import Accepted, Delta, Finished, GenerateOptions, Request, RequestFailed
from tests.unit.client.stub import REFUSALS, StubScheduler


@pytest.fixture
async def client(stub: StubScheduler) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(stub.address) as one:
        yield one


async def test_a_stream_is_accepted_deltas_and_finished(client: AsyncClient) -> None:
    events = [event async for event in client.stream("to be", request_id="x")]
    assert events[0] == Accepted("x", 2, 0)
    assert [event.text for event in events if isinstance(event, Delta)] == ["to ", "be "]
    assert isinstance(events[-1], Finished)


async def test_generate_and_the_small_calls(client: AsyncClient) -> None:
    assert (await client.generate(token_ids=[4, 5])).text == "4 5"
    assert await client.abort(["live1", "dead"]) == ("live1",)
    assert await client.tokenize("a bb") == (1, 2)
    assert await client.detokenize([7]) == "7"
    assert (await client.model_info()).model_id == "words"
    assert (await client.stats(requests=True)).requests[0].request_id == "a"
    assert (await client.pool_map()).fill.tolist() == [0, 4, 3]
    assert (await client.sequence_blocks("a")).num_tokens == 3
    assert (await client.explain("a")).missing_blocks == 2


@pytest.mark.parametrize("word", sorted(REFUSALS))
async def test_a_refusal_keeps_its_class_reason_field_and_delay(client: AsyncClient, word: str) -> None:
    told = REFUSALS[word]
    with pytest.raises(type(told)) as streamed:
        async for _ in client.stream(word):
            pass
    with pytest.raises(type(told)) as once:
        await client.generate(word)
    for got in (streamed.value, once.value):
        assert (got.message, got.reason, got.field) == (told.message, told.reason, told.field)
        assert got.retry_after == told.retry_after


async def test_leaving_a_stream_cancels_it(client: AsyncClient, stub: StubScheduler) -> None:
    """A02."""
    async with client.stream("endless") as stream:
        await anext(stream)
    assert stub.cancelled.wait(10)


async def test_a_batch_of_good_and_bad_requests(client: AsyncClient, stub: StubScheduler) -> None:
    good = [Request(prompt=word, request_id=word) for word in "abcdef"]
    bad = [
        Request(prompt="full", request_id="full"),
        Request(prompt="x", options=GenerateOptions(top_k=-1), request_id="unfit"),
    ]

    async def as_they_come() -> AsyncIterator[Request]:
        for request in (*good, *bad):
            yield request

    ended, failed = set(), {}
    async for name, event in client.batch(as_they_come(), max_in_flight=2):
        if isinstance(event, Finished):
            ended.add(name)
        elif isinstance(event, RequestFailed):
            failed[name] = event.error.reason
    assert ended == set("abcdef")
    assert failed == {"full": "QUEUE_FULL", "unfit": "INVALID_FIELD"}
    assert stub.most_open <= 2


async def test_a_batch_raises_what_its_requests_raise(client: AsyncClient) -> None:
    def broken() -> list[Request]:
        raise ValueError("line 3 is not JSON")

    async def requests() -> AsyncIterator[Request]:
        yield Request(prompt="a", request_id="a")
        broken()

    with pytest.raises(ValueError, match="line 3"):
        async for _ in client.batch(requests()):
            pass


async def test_a_batch_that_breaks_knows_what_was_open(client: AsyncClient) -> None:
    batch = client.batch([Request(prompt="hangup", request_id="r0")])
    with pytest.raises(e.ConnectionFailed):
        async for _ in batch:
            pass
    assert batch.open_ids == ("r0",)


async def test_wait_ready(client: AsyncClient, stub: StubScheduler) -> None:
    await client.wait_ready(5)
    stub.serving(False)
    assert not await client.is_ready()
    with pytest.raises(e.NotReady, match="no worker is ready"):
        await client.wait_ready(0.2)


async def test_nobody_there_is_one_line() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(e.ConnectionFailed, match="Connection refused"):
            await client.generate("x")
        with pytest.raises(e.NotReady, match="nobody answers there"):
            await client.wait_ready(0.2)

"""Several sequences of a request, and log-probabilities, as both clients give them."""

import json

import pytest

from octavo_client import AsyncClient, Client, types
from octavo_client.jsonl import Answer
from octavo_client.types import Accepted, Delta, Finished, PositionLogprobs, TokenLogprob
from tests.unit.client.stub import StubScheduler

SAMPLED = TokenLogprob(0, -1.0, b"w")
TOP = (TokenLogprob(100, -2.0, b"\xc3"), TokenLogprob(101, -3.0, b"\xc3"))


def check(events: list[types.Event]) -> None:
    accepted, *rest = events
    assert accepted == Accepted(
        "x", 2, 0, (PositionLogprobs(None), PositionLogprobs(TokenLogprob(1, -9999.0)))
    )
    deltas = [event for event in rest if isinstance(event, Delta)]
    assert [delta.index for delta in deltas] == [0, 0, 1, 1]
    assert deltas[0].logprobs == (PositionLogprobs(SAMPLED, TOP),)
    ends = [event for event in rest if isinstance(event, Finished)]
    assert [(end.index, end.usage.shared_blocks_saved) for end in ends] == [(0, 0), (1, 3)]


def test_a_stream_tells_sequences_apart_and_carries_logprobs(stub: StubScheduler) -> None:
    with Client(stub.address) as client:
        check(list(client.stream("to be", request_id="x", n=2, logprobs=2, prompt_logprobs=0)))


async def test_the_asynchronous_stream_does_so_too(stub: StubScheduler) -> None:
    async with AsyncClient(stub.address) as client:
        stream = client.stream("to be", request_id="x", n=2, logprobs=2, prompt_logprobs=0)
        check([event async for event in stream])


def test_a_completion_carries_logprobs(stub: StubScheduler) -> None:
    with Client(stub.address) as client:
        done = client.generate("to be", logprobs=2, prompt_logprobs=0)
    assert done.choices[0].logprobs[0] == PositionLogprobs(SAMPLED, TOP)
    assert [position.sampled is None for position in done.prompt_logprobs] == [True, False]


@pytest.mark.parametrize("asked", [None, 0])
def test_logprobs_zero_is_asked_for_and_none_is_not(stub: StubScheduler, asked: int | None) -> None:
    with Client(stub.address) as client:
        done = client.generate("to be", logprobs=asked)
    assert len(done.choices[0].logprobs) == (0 if asked is None else 2)
    assert stub.seen[0].output.HasField("logprobs") == (asked is not None)


def test_a_json_line_holds_the_logprobs_of_its_sequence(stub: StubScheduler) -> None:
    with Client(stub.address) as client:
        events = list(client.stream("to be", n=2, logprobs=1))
    answer = Answer(1)
    for event in events:
        if isinstance(event, Delta):
            answer.add(event)
    end = next(event for event in events if isinstance(event, Finished) and event.index == 1)
    line = json.loads(json.dumps(answer.finished("x", end, with_token_ids=True)))
    assert (line["index"], line["token_ids"], len(line["logprobs"])) == (1, [0, 1], 2)
    assert line["logprobs"][0]["sampled"] == {"token_id": 0, "token": "w", "logprob": -1.0}
    assert line["logprobs"][0]["top"] == [{"token_id": 100, "token": "\ufffd", "logprob": -2.0}]

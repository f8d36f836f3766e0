"""Outboxes: merging, order, and the backlog rule (A22)."""

import asyncio

import pytest

from octavo.errors import InvalidArgument, ResourceExhausted
from octavo.v1 import inference_pb2
from scheduler_svc.streams import BacklogLimits, Outbox

LIMITS = BacklogLimits(tokens=10, characters=600, stall_seconds=5.0)


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(LIMITS)


def test_deltas_that_wait_are_merged(outbox: Outbox) -> None:
    for token in range(5):
        outbox.put_delta("a", [token], f"<{token}>")
    outbox.put_delta("b", [9], "")
    first, second = outbox.take()
    assert (first.request_id, first.token_ids, "".join(first.text)) == (
        "a",
        [0, 1, 2, 3, 4],
        "<0><1><2><3><4>",
    )
    assert (second.request_id, second.token_ids, second.text) == ("b", [9], [])
    assert outbox.take() == []


def test_an_end_stays_with_the_tokens_before_it(outbox: Outbox) -> None:
    outbox.of("a").accepted = inference_pb2.Accepted(request_id="a")
    outbox.put_delta("a", [1], "x")
    outbox.of("a").finished = inference_pb2.Finished()
    (pending,) = outbox.take()
    assert pending.accepted is not None
    assert pending.has_delta
    assert pending.finished is not None


def test_refusals_never_touch_a_live_request_of_the_same_id(outbox: Outbox) -> None:
    outbox.put_delta("a", [1], "")
    outbox.put_refusal("a", InvalidArgument("no"))
    outbox.put_refusal("a", InvalidArgument("again"))
    live, *refused = outbox.take()
    assert (live.token_ids, live.error) == ([1], None)
    assert [str(pending.error) for pending in refused] == ["no", "again"]


async def test_a_reader_is_woken_by_a_flush_and_not_by_a_put(outbox: Outbox) -> None:
    reader = asyncio.create_task(outbox.next())
    await asyncio.sleep(0)
    outbox.put_delta("a", [1], "")
    await asyncio.sleep(0)
    assert not reader.done()
    assert outbox.flush(0.0)
    assert [pending.token_ids for pending in await reader] == [[1]]


async def test_a_woken_reader_may_find_nothing(outbox: Outbox) -> None:
    reader = asyncio.create_task(outbox.next())
    await asyncio.sleep(0)
    outbox.wake()
    assert await reader == []
    outbox.wake()
    assert await outbox.next() == []


async def test_a22_past_the_token_bound_the_stream_fails_and_holds_nothing(outbox: Outbox) -> None:
    failed: list[bool] = []
    outbox.on_failure = lambda: failed.append(True)
    outbox.put_delta("a", list(range(10)), "")
    assert outbox.flush(0.0)
    outbox.put_delta("a", [1], "")
    assert not outbox.flush(0.0)
    assert (outbox.is_empty, failed) == (True, [True])
    assert outbox.flush(0.0), "it fails once"
    with pytest.raises(ResourceExhausted, match="11 tokens pending, limit 10") as caught:
        await outbox.next()
    assert caught.value.reason == "STREAM_BACKLOG"


def test_a22_past_the_character_bound_the_stream_fails(outbox: Outbox) -> None:
    outbox.put_delta("a", [], "x" * 601)
    assert not outbox.flush(0.0)


def test_a22_refusals_count_for_the_bound(outbox: Outbox) -> None:
    for _ in range(3):
        outbox.put_refusal("", InvalidArgument("no"))
    assert not outbox.flush(0.0)


async def test_a22_a_reader_stuck_too_long_fails(outbox: Outbox) -> None:
    outbox.put_delta("a", [1], "")
    outbox.flush(100.0)
    outbox.put_delta("a", [2], "")
    outbox.flush(104.0)
    assert outbox.check_stall(105.0)
    assert not outbox.check_stall(105.1)
    assert outbox.check_stall(200.0), "it fails once"
    with pytest.raises(ResourceExhausted, match="nothing was read for 5 s"):
        await outbox.next()


def test_a22_a_reader_with_nothing_to_read_is_not_stuck(outbox: Outbox) -> None:
    outbox.put_delta("a", [1], "")
    outbox.flush(100.0)
    outbox.take()
    assert outbox.check_stall(1000.0)

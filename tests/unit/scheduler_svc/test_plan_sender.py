"""Plans in front of a step stream: their order, the first of them, and a stream that has ended."""

import asyncio
import sys

import pytest

from octavo.worker.v1 import worker_pb2
from scheduler_svc.plan_sender import LostSessionError, PlanSender


class Call:
    """Takes a write at once and lets it end when the test says so; `ended`: it takes no more."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.ended = False
        self._room: asyncio.Future[None] | None = None

    async def write(self, message: worker_pb2.RunRequest) -> None:
        assert self._room is None or self._room.done(), "two writes at a time"
        if self.ended:
            raise asyncio.InvalidStateError
        self.written.append(message.plan.step_id)
        self._room = asyncio.get_running_loop().create_future()
        await self._room

    async def finish(self) -> None:
        """The write under way ends."""
        assert self._room is not None
        self._room.set_result(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def plan(step: int) -> worker_pb2.StepPlan:
    return worker_pb2.StepPlan(step_id=step)


async def test_plans_are_written_in_order_and_one_at_a_time() -> None:
    call = Call()
    sender = PlanSender(call)
    for step in (1, 2, 3):
        sender.put(plan(step))
    await asyncio.sleep(0)
    assert call.written == [1]
    await call.finish()
    assert call.written == [1, 2]
    sender.put(plan(4))
    for _ in range(3):
        await call.finish()
    assert call.written == [1, 2, 3, 4]
    sender.put(plan(5))
    await asyncio.sleep(0)
    assert call.written == [1, 2, 3, 4, 5]


async def test_a_plan_that_finds_nothing_under_way_is_written_before_put_returns() -> None:
    """Before Python 3.12 a task cannot begin so, and it is the next turn."""
    at_once = sys.version_info >= (3, 12)
    call = Call()
    sender = PlanSender(call)
    sender.put(plan(1))
    assert call.written == ([1] if at_once else [])
    await asyncio.sleep(0)
    assert call.written == [1]
    await call.finish()
    sender.put(plan(2))
    assert call.written == ([1, 2] if at_once else [1])
    await asyncio.sleep(0)
    assert call.written == [1, 2]


async def test_a_stream_that_has_ended_is_told_once_and_by_run() -> None:
    call = Call()
    sender = PlanSender(call)
    running = asyncio.create_task(sender.run())
    await asyncio.sleep(0)
    call.ended = True
    sender.put(plan(1))
    with pytest.raises(LostSessionError, match="ended the stream"):
        await running
    sender.put(plan(2))  # nobody listens any more
    await asyncio.sleep(0)
    assert call.written == []


async def test_nothing_is_written_once_run_is_cancelled() -> None:
    call = Call()
    sender = PlanSender(call)
    running = asyncio.create_task(sender.run())
    sender.put(plan(1))
    sender.put(plan(2))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.sleep(0)
    assert call.written == [1]

"""The engine against the real core: order, ends, timers, backlog."""

import asyncio
from collections.abc import Sequence

import pytest

from octavo.errors import AlreadyExists, ResourceExhausted, Unavailable
from scheduler_svc.core.plan import SchedulerConfig
from scheduler_svc.engine import EngineSettings
from scheduler_svc.requests import QueueLimits
from scheduler_svc.streams import BacklogLimits, Outbox
from tests.e2e.rig import until
from tests.unit.scheduler_svc.engine_rig import engine_rig, read, reason


async def test_a_request_is_accepted_told_its_tokens_and_ended() -> None:
    async with engine_rig() as rig:
        record = await rig.submit()
        first = read(record)
        assert first.accepted is not None
        assert (first.accepted.request_id, first.accepted.prompt_tokens) == ("r1", 5)
        await rig.answer_all()
        told = read(record)
        assert told.token_ids == [15, 16, 17, 18]
        assert reason(told) == "LENGTH"
        assert told.finished is not None
        assert told.finished.usage.completion_tokens == 4
        assert rig.outcome() == {"length": 1}
        assert rig.engine.num_requests == 0
        assert record.outbox.live == set()


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_steps_in_flight_are_as_many_as_the_depth(depth: int) -> None:
    async with engine_rig(config=SchedulerConfig(depth=depth)) as rig:
        await rig.submit(tokens=10)
        assert len(rig.plans) == depth
        await rig.answer()
        assert len(rig.plans) == depth


async def test_a_third_step_is_in_flight_only_while_steps_are_short() -> None:
    """Two hide the way to the worker and back, unless they are shorter than it."""
    async with engine_rig(config=SchedulerConfig(depth=3)) as rig:
        await rig.submit(tokens=20)
        for seconds, in_flight in ((1e-3, 3), (2.5e-3, 2), (9e-3, 2), (1.9e-3, 3), (1e-3, 3)):
            await rig.answer(forward_seconds=seconds)
            while len(rig.plans) > in_flight:  # those that left before the steps grew long
                await rig.answer(forward_seconds=seconds)
            assert len(rig.plans) == in_flight


async def test_the_next_plan_leaves_before_the_tokens_are_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine_rig(config=SchedulerConfig(depth=1)) as rig:
        record = await rig.submit(tokens=10)
        read(record)
        seen: list[int] = []
        put = record.outbox.put_delta

        def spy(request_id: str, token_ids: Sequence[int], text: str, index: int) -> None:
            seen.append(len(rig.plans))
            put(request_id, token_ids, text, index)

        monkeypatch.setattr(record.outbox, "put_delta", spy)
        await rig.answer()
        assert seen == [1]


async def test_all_requests_of_a_stream_speak_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine_rig() as rig:
        outbox = Outbox(BacklogLimits())
        for _ in range(3):
            rig.engine.submit(rig.record(outbox, tokens=5))
        await rig.settle()
        outbox.take()
        flushes: list[int] = []
        flush = outbox.flush

        def spy(now: float) -> bool:
            flushes.append(1)
            return flush(now)

        monkeypatch.setattr(outbox, "flush", spy)
        await rig.answer()
        assert flushes == [1]
        assert [pending.token_ids for pending in outbox.take()] == [[15], [15], [15]]


async def test_a01_an_abort_is_acknowledged_after_the_stream_was_told() -> None:
    async with engine_rig() as rig:
        record = await rig.submit(tokens=10)
        await rig.answer()
        abort = asyncio.create_task(rig.engine.abort(["r1", "unknown"]))
        await rig.settle()
        assert await abort == ["r1"]
        told = read(record)
        assert (told.token_ids, reason(told)) == ([15], "ABORTED")
        await rig.answer_all()
        assert record.outbox.take() == []
        assert await rig.engine.abort(["r1"]) == []
        assert rig.outcome() == {"aborted": 1}


async def test_a02_a_stream_that_is_left_frees_its_requests() -> None:
    async with engine_rig() as rig:
        outbox = Outbox(BacklogLimits())
        for _ in range(3):
            await rig.submit(outbox, tokens=50)
        outbox.take()
        rig.engine.close(outbox, "deadline")
        await rig.settle()
        assert (rig.engine.num_requests, rig.outcome()) == (0, {"deadline": 3})
        assert outbox.is_empty
        stats = await rig.engine.ask(lambda core: core.stats())
        assert (stats.running, stats.waiting, stats.blocks_active) == (0, 0, 0)
        await rig.answer_all()


async def test_an_id_may_be_used_again_once_it_has_ended() -> None:
    async with engine_rig() as rig:
        await rig.submit(request_id="same")
        with pytest.raises(AlreadyExists):
            rig.engine.submit(rig.record(request_id="same"))
        await rig.answer_all()
        await rig.submit(request_id="same")


async def test_the_queue_s_bound_holds_for_what_waits_not_for_what_runs() -> None:
    async with engine_rig(EngineSettings(queue=QueueLimits(requests=2))) as rig:
        await rig.submit(tokens=50)
        await rig.submit(tokens=50)
        await rig.answer(2)
        await rig.submit(tokens=50)
        await rig.submit(tokens=50)
        with pytest.raises(ResourceExhausted):
            rig.engine.submit(rig.record())


async def test_a_refusal_of_the_core_ends_the_request_and_is_counted() -> None:
    async with engine_rig() as rig:
        record = await rig.submit(length=300)
        assert reason(read(record)) == "EXCEEDS_KV_POOL"
        assert rig.metrics.rejections["EXCEEDS_KV_POOL"] == 1
        assert rig.engine.num_requests == 0


async def test_a23_a_queue_timeout_ends_what_waits_and_not_what_runs() -> None:
    async with engine_rig() as rig:
        running = await rig.submit(tokens=50, queue_deadline=rig.now + 5)
        for _ in range(7):
            await rig.submit(tokens=50)
        waiting = await rig.submit(tokens=50, queue_deadline=rig.now + 5)
        rig.now += 6
        await rig.answer()
        assert reason(read(waiting)) == "QUEUE_TIMEOUT"
        assert reason(read(running)) == ""
        assert rig.outcome() == {"queue_timeout": 1}


async def test_a23_a_queue_timeout_needs_no_step_to_fire() -> None:
    async with engine_rig() as rig:
        for _ in range(8):
            await rig.submit(tokens=50)
        waiting = await rig.submit(tokens=50, queue_deadline=rig.now + 0.05)
        rig.now += 1
        await until(lambda: bool(rig.outcome()))
        assert reason(read(waiting)) == "QUEUE_TIMEOUT"


async def test_a22_a_stream_past_its_bound_is_dropped_and_its_requests_end() -> None:
    async with engine_rig() as rig:
        outbox = Outbox(BacklogLimits(tokens=3))
        await rig.submit(outbox, tokens=50)
        other = await rig.submit(tokens=6)
        await rig.answer_all(20)
        assert outbox.failure is not None
        assert rig.outcome() == {"stream_backlog": 1, "length": 1}
        assert read(other).token_ids == [15, 16, 17, 18, 19, 20]


async def test_a_question_that_fails_costs_the_asker_alone() -> None:
    async with engine_rig() as rig:
        with pytest.raises(KeyError):
            await rig.engine.ask(lambda core: dict[str, int]()["nothing"])
        assert (await rig.engine.ask(lambda core: core.stats())).num_blocks == 64


async def test_end_all_and_idle_serve_the_shutdown() -> None:
    async with engine_rig() as rig:
        record = await rig.submit(tokens=50)
        idle = asyncio.create_task(rig.engine.idle())
        await rig.settle()
        assert not idle.done()
        rig.engine.end_all(Unavailable("bye", reason="DRAINING"), "drained")
        await idle
        assert reason(read(record)) == "DRAINING"
        assert rig.outcome() == {"drained": 1}
        await rig.engine.idle()

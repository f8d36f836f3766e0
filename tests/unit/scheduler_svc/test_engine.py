"""The engine against the real core: order, ends, timers, lost workers and odd answers."""

import asyncio
from collections.abc import Sequence

import pytest

from octavo.errors import AlreadyExists, ResourceExhausted, Unavailable
from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.plan import SchedulerConfig
from scheduler_svc.engine import EngineSettings
from scheduler_svc.requests import QueueLimits
from scheduler_svc.streams import BacklogLimits, Outbox
from tests.unit.scheduler_svc.engine_rig import EngineRig, capacity, engine_rig, read, reason

GRACE = EngineSettings(grace_seconds=10.0)


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


@pytest.mark.parametrize("depth", [1, 2])
async def test_steps_in_flight_are_as_many_as_the_depth(depth: int) -> None:
    async with engine_rig(config=SchedulerConfig(depth=depth)) as rig:
        await rig.submit(tokens=10)
        assert len(rig.plans) == depth
        await rig.answer()
        assert len(rig.plans) == depth


async def test_the_next_plan_leaves_before_the_tokens_are_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine_rig(config=SchedulerConfig(depth=1)) as rig:
        record = await rig.submit(tokens=10)
        read(record)
        seen: list[int] = []
        put = record.outbox.put_delta

        def spy(request_id: str, token_ids: Sequence[int], text: str) -> None:
            seen.append(len(rig.plans))
            put(request_id, token_ids, text)

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
        clock_moves = rig.now
        waiting = await rig.submit(tokens=50, queue_deadline=clock_moves + 0.05)
        rig.now += 1
        await asyncio.sleep(0.1)
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


async def lose_and_return(rig: EngineRig, told: worker_pb2.GetCapacityResponse) -> None:
    await rig.lose()
    await rig.connect(told)
    await rig.answer_all()


async def test_a25_a_lost_worker_costs_a_delay_and_no_token() -> None:
    async with engine_rig() as rig:
        record = await rig.submit(tokens=8)
        await rig.answer(3)
        assert rig.ready == [True]
        await lose_and_return(rig, capacity(epoch=2))
        told = read(record)
        assert (told.token_ids, reason(told)) == (list(range(15, 23)), "LENGTH")
        assert rig.ready == [True, False, True]
        assert rig.metrics.epoch_changes == 1


async def test_requests_are_queued_while_the_worker_is_away() -> None:
    async with engine_rig() as rig:
        await rig.lose()
        record = await rig.submit()
        assert record.outbox.is_empty
        await rig.connect()
        await rig.answer_all()
        assert reason(read(record)) == "LENGTH"


async def test_a25_past_the_grace_period_requests_end_and_new_ones_are_refused() -> None:
    async with engine_rig(GRACE) as rig:
        record = await rig.submit(tokens=50)
        await rig.lose()
        rig.now += 9
        queued = await rig.submit()
        rig.now += 2
        await rig.engine.abort([])  # any input turns the engine
        assert [reason(read(one)) for one in (record, queued)] == ["WORKER_LOST"] * 2
        assert rig.outcome() == {"worker_lost": 2}
        with pytest.raises(Unavailable) as refused:
            rig.engine.submit(rig.record())
        assert refused.value.retry_after == 1.0
        await rig.connect()
        after = await rig.submit()
        await rig.answer_all()
        assert reason(read(after)) == "LENGTH"


async def test_before_the_first_worker_requests_are_refused() -> None:
    async with engine_rig(connect=False) as rig:
        with pytest.raises(Unavailable):
            rig.engine.submit(rig.record())


async def test_a09_other_weights_end_what_has_output_and_restart_the_rest() -> None:
    async with engine_rig() as rig:
        started = await rig.fill(tokens=8)
        waiting = await rig.submit(tokens=2)
        await rig.answer(2)
        await lose_and_return(rig, capacity(epoch=2, fingerprint="other"))
        assert {reason(read(record)) for record in started} == {"MODEL_CHANGED"}
        told = read(waiting)
        assert (told.token_ids, reason(told)) == ([15, 16], "LENGTH")
        assert rig.outcome() == {"model_changed": 8, "length": 1}


async def test_a_failed_step_costs_its_rows_and_a_session() -> None:
    async with engine_rig(config=SchedulerConfig(depth=1)) as rig:
        record = await rig.submit(tokens=8)
        await rig.answer()
        failure = worker_pb2.StepFailure(reason=worker_pb2.STEP_FAILURE_REASON_DEVICE_ERROR, detail="boom")
        await rig.answer(token_ids=b"", failure=failure)
        told = read(record)
        assert (told.token_ids, reason(told)) == ([15], "ERROR")
        assert told.finished is not None
        assert "DEVICE_ERROR" in told.finished.error_reason
        assert rig.resets == ["step failed: DEVICE_ERROR"]
        assert rig.ready == [True, False]
        assert rig.metrics.step_failures["DEVICE_ERROR"] == 1
        await rig.connect()
        after = await rig.submit()
        await rig.answer_all()
        assert reason(read(after)) == "LENGTH"


async def test_a_stale_session_costs_nothing_but_a_session() -> None:
    async with engine_rig(config=SchedulerConfig(depth=1)) as rig:
        record = await rig.submit(tokens=3)
        failure = worker_pb2.StepFailure(reason=worker_pb2.STEP_FAILURE_REASON_STALE_SESSION)
        await rig.answer(token_ids=b"", failure=failure)
        assert rig.resets == ["step failed: STALE_SESSION"]
        await rig.connect()
        await rig.answer_all()
        told = read(record)
        assert (told.token_ids, reason(told)) == ([15, 16, 17], "LENGTH")


async def test_a26_a_missing_token_costs_only_its_row() -> None:
    async with engine_rig() as rig:
        unlucky, lucky = await rig.submit(tokens=6), await rig.submit(tokens=6)
        await rig.answer_all(1)
        await rig.answer(token_ids=b"")
        await rig.answer_all()
        ends = sorted(reason(read(record)) for record in (unlucky, lucky))
        assert ends == ["ERROR", "LENGTH"] or ends == ["ERROR", "ERROR"]
        assert rig.metrics.oddities["missing_tokens"] == 1


async def test_a26_an_answer_of_a_lost_session_is_counted_and_left_out() -> None:
    async with engine_rig() as rig:
        await rig.submit(tokens=6)
        assert rig.session is not None
        old, answers = rig.session, rig.session.take(rig.result(), rig.now)
        rig.engine.worker_lost(old, "test")
        rig.engine.worker_answered(old, answers)
        await rig.settle()
        assert rig.metrics.oddities["stale_session"] == 1


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

"""The engine when the worker goes, comes back, changes, fails a step or answers oddly."""

import pytest

from octavo.errors import Unavailable
from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.plan import SchedulerConfig
from scheduler_svc.engine import EngineSettings
from tests.unit.scheduler_svc.engine_rig import EngineRig, capacity, engine_rig, read, reason

GRACE = EngineSettings(grace_seconds=10.0)


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

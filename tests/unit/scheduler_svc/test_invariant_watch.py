"""--check-invariants on a live service: when it looks, what it says, and that serving goes on."""

import logging

import pytest

from scheduler_svc.core.plan import SchedulerConfig
from scheduler_svc.engine import EngineSettings
from scheduler_svc.invariant_watch import AUDIT_SECONDS, MOST_LOGGED, InvariantWatch
from scheduler_svc.metrics import ShellMetrics
from tests.fakes.core_driver import CoreDriver
from tests.unit.scheduler_svc.engine_rig import engine_rig, read, reason


def broken_core() -> CoreDriver:
    """A reference too many on a block in use."""
    core = CoreDriver(16, 4)
    core.add([1, 2, 3, 4, 5], 9)
    core.step()
    session = core.core._lifecycle.session
    assert session is not None
    session.manager.pool.ref_count[int(session.rows.table[0, 0])] += 1
    return core


def test_every_step_finds_it_at_once_counts_it_and_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = ShellMetrics()
    watch, core = InvariantWatch(metrics, "every-step"), broken_core()
    plans = [watch.schedule(core.core, 0.0) for _ in range(3)]
    assert plans[0] is not None, "what is served is unchanged"
    assert metrics.invariant_violations["I2"] == 3
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len([line for line in lines if "invariant broken: I2" in line]) == 1


def test_idle_looks_only_when_nothing_runs_and_now_and_then() -> None:
    metrics = ShellMetrics()
    watch, core = InvariantWatch(metrics, "idle"), broken_core()
    watch.schedule(core.core, 0.0)
    assert not any(metrics.invariant_violations.values())
    watch.idle(core.core, 16, 0.0)
    watch.idle(core.core, 16, AUDIT_SECONDS / 2)
    assert metrics.invariant_violations["I2"] == 1
    watch.idle(core.core, 16, AUDIT_SECONDS)
    assert metrics.invariant_violations["I2"] == 2
    watch.idle(core.core, 1 << 20, 3 * AUDIT_SECONDS)
    assert metrics.invariant_violations["I2"] == 2, "a large pool is not walked over"


def test_off_never_looks() -> None:
    metrics = ShellMetrics()
    watch, core = InvariantWatch(metrics, "off"), broken_core()
    watch.schedule(core.core, 0.0)
    watch.idle(core.core, 16, 0.0)
    assert not any(metrics.invariant_violations.values())


def test_what_is_logged_is_bounded_and_all_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    metrics = ShellMetrics()
    watch = InvariantWatch(metrics, "every-step")
    watch._report(f"I3: number {i}" for i in range(1000))
    watch._report(["sequence 4 is nowhere"])
    assert metrics.invariant_violations["I3"] == 1000
    assert metrics.invariant_violations["other"] == 1
    logged = [record for record in caplog.records if record.name == InvariantWatch.__module__]
    assert len(logged) == MOST_LOGGED


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_service_that_checks_every_step_finds_nothing_in_a_sound_core(depth: int) -> None:
    settings = EngineSettings(check_invariants="every-step")
    async with engine_rig(settings, SchedulerConfig(depth=depth)) as rig:
        records = [await rig.submit(length=5 + i, tokens=6) for i in range(6)]
        await rig.answer_all()
        assert {reason(read(record)) for record in records} == {"LENGTH"}
        assert not any(rig.metrics.invariant_violations.values())


async def test_a_broken_invariant_costs_no_request_and_no_readiness() -> None:
    async with engine_rig(EngineSettings(check_invariants="every-step")) as rig:
        record = await rig.submit(tokens=6)
        session = rig.engine._inputs.core._lifecycle.session
        assert session is not None
        session.manager.pool.clock._taken[:] = 0
        session.rows.room[0] += 1
        await rig.answer_all()
        assert reason(read(record)) == "LENGTH"
        assert rig.metrics.invariant_violations["I5"] > 0
        assert rig.ready == [True]

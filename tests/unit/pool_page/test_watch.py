"""While nobody watches, the engine is neither asked nor observed; however many watch, it is asked once."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scheduler_svc.core.plan import (
    Admitted,
    NewRequest,
    Notices,
    PreemptionMode,
    SchedulerConfig,
    SeqId,
    StepResult,
)
from scheduler_svc.core.stats import BlockState
from scheduler_svc.pool_page.events import KEPT, EventLog
from scheduler_svc.pool_page.sample import sample_of
from scheduler_svc.pool_page.updates import Viewer
from scheduler_svc.pool_page.watch import MAX_VIEWERS, PoolWatch, TooManyViewers
from tests.fakes.core_driver import CoreDriver
from tests.fakes.pool_reader import PoolReader
from tests.unit.pool_page.test_updates import StubEngine, assert_same
from tests.unit.scheduler_svc.engine_rig import EngineRig, engine_rig


def watch_of(rig: EngineRig, asked: list[int]) -> PoolWatch:
    ask = rig.engine.ask

    async def counted(question: Callable[..., Any]) -> Any:
        asked.append(1)
        return await ask(question)

    rig.engine.ask = counted  # type: ignore[method-assign]
    return PoolWatch(rig.engine, asyncio.get_running_loop(), lambda: rig.now)


async def test_nothing_runs_without_viewers_and_all_share_one_sample() -> None:
    asked: list[int] = []
    async with engine_rig() as rig:
        watch = watch_of(rig, asked)
        await rig.submit()
        await rig.answer_all()
        assert (asked, watch.log.last, rig.engine._inputs.observer) == ([], 0, None)
        with watch.viewing(), watch.viewing():
            await rig.settle()
            assert rig.engine._inputs.observer is watch.log
            samples = [await asyncio.to_thread(watch.sample) for _ in range(5)]
            assert len({id(sample) for sample in samples}) == len(asked) == 1
            rig.now += 0.2
            record = await rig.submit(tokens=2)
            assert await asyncio.to_thread(watch.sample) is not samples[0]
            await rig.answer_all()
            assert len(asked) == 2
        await rig.settle()
        assert rig.engine._inputs.observer is None
        told, missed = watch.log.since(0)
        assert missed == 0
        assert [(event["kind"], event.get("seq")) for event in told] == [
            ("admitted", record.seq_id), ("ended", record.seq_id),
        ]  # fmt: skip
        before = watch.log.last
        await rig.submit()
        await rig.answer_all()
        assert (watch.log.last, len(asked)) == (before, 2)


async def test_viewers_are_bounded() -> None:
    async with engine_rig() as rig:
        watch = watch_of(rig, [])
        held = [watch.viewing() for _ in range(MAX_VIEWERS)]
        for viewing in held:
            viewing.__enter__()
        with pytest.raises(TooManyViewers, match=f"limit {MAX_VIEWERS}"), watch.viewing():
            pass
        held[0].__exit__(None, None, None)
        with watch.viewing():
            pass


async def test_a_lost_worker_and_a_preemption_are_seen_between_samples() -> None:
    async with engine_rig() as rig:
        watch = watch_of(rig, [])
        with watch.viewing():
            await asyncio.to_thread(watch.sample)
            await rig.lose()
            rig.now += 1
            lost = await asyncio.to_thread(watch.sample)
            assert (lost.session, lost.num_blocks) == ("", 0)
            await rig.connect()
            rig.now += 1
            await asyncio.to_thread(watch.sample)
        assert [event["up"] for event in watch.log.since(0)[0] if event["kind"] == "session"] == [False, True]


def test_a_reader_that_is_too_late_is_told_how_many_it_missed() -> None:
    log = EventLog(lambda: 1.0, lambda seq_id: f"r{seq_id}")
    for number in range(KEPT + 30):
        log.noticed(Notices(admitted=(Admitted(SeqId(number), 0),)))
    events, missed = log.since(10)
    assert (len(events), missed, events[0]["id"], log.since(log.last)) == (KEPT, 20, "r30", ([], 0))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_fork_and_the_copies_after_it_are_told_from_the_plans(depth: int) -> None:
    """A14: two groups that fork in one step, beside a plain request."""
    core = CoreDriver(64, 4, SchedulerConfig(depth=depth, max_num_batched_tokens=256, prefix_cache=False))
    log = EventLog(lambda: 1.0, lambda seq_id: f"r{seq_id}")
    core.add([1, 2, 3], 3)
    for n in (3, 2):
        prompt = np.arange(10 * n, 10 * n + 6, dtype=np.int32)
        seq_id = core._next_id
        request = NewRequest(SeqId(seq_id), prompt, max_tokens=3, n=n)
        assert core.core.add(request, 0.0) is None
        core._next_id += n
    while core.core.has_work():
        plan = core.core.schedule(0.0)
        if plan is None:
            break
        log.planned(plan)
        if len(log.since(0)[0]) >= 4:
            break
        samples = np.full(len(plan.sample_rows), 7, np.int32)
        core.core.apply(StepResult(plan.step_id, samples), 0.0)
    told = log.since(0)[0]
    assert [(event["seq"], event["n"]) for event in told if event["kind"] == "fork"] == [(1, 3), (4, 2)]
    assert (
        sum(event["n"] for event in told if event["kind"] == "copy") == 3
    )  # the last to write copies nothing


def test_swaps_are_told_from_the_plans_and_the_blocks_are_fenced_meanwhile() -> None:
    """A30: what is copied out is named, and so is what comes back; fenced blocks replay like all others."""
    config = SchedulerConfig(preemption=PreemptionMode.SWAP, max_num_batched_tokens=64)
    core = CoreDriver(24, 4, config, host_blocks=64)
    log, engine = EventLog(lambda: 1.0, lambda seq_id: f"r{seq_id}"), StubEngine()
    viewer, reader, fenced, swapped = Viewer(), PoolReader(), 0, 0
    for first in range(0, 400, 100):
        core.add(range(first, first + 16), 30)
    for _ in range(600):
        if not core.core.has_work():
            break
        before = len(core.plans)
        core.step()
        for plan in core.plans[before:]:
            log.planned(plan)
        sample = sample_of(core.core, engine, 0.0)  # type: ignore[arg-type]
        reader.apply(viewer.update(sample, [], 0))
        assert_same(reader, sample)
        fenced = max(fenced, sum(flags & 3 == BlockState.FENCED for flags, _, _ in reader.cells))
        swapped = max(swapped, sum(one.host for one in sample.listed))
    told = log.since(0)[0]
    moved = {kind: sum(e["n"] for e in told if e["kind"] == kind) for kind in ("swap_out", "swap_in")}
    counters = core.core.stats().counters
    assert moved == {"swap_out": counters.blocks_swapped_out, "swap_in": counters.blocks_swapped_in}
    assert min(*moved.values(), fenced, swapped) > 0

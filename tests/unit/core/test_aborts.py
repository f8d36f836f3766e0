"""A01: an abort at any moment. (f), while swapped out, comes with swapping."""

import pytest

from scheduler_svc.core.plan import FinishReason, SchedulerConfig, SeqId
from tests.fakes.core_driver import CoreDriver

PROMPT = list(range(1, 11))


def queued(core: CoreDriver) -> int:
    core.add(PROMPT, 50)
    core.fill()
    return core.add([1], 5)


def between_chunks(core: CoreDriver) -> int:
    seq_id = core.add(PROMPT, 5)
    core.schedule()
    core.answer()
    assert 0 < next(iter(core.core.sequences())).computed < len(PROMPT)
    return seq_id


def at_the_worker(core: CoreDriver) -> int:
    seq_id = core.add(PROMPT, 5)
    core.fill()
    assert core.in_flight
    return seq_id


def in_its_last_step(core: CoreDriver) -> int:
    seq_id = core.add(PROMPT, 1)
    core.fill()
    assert len(core.in_flight) == 1
    return seq_id


def after_its_end(core: CoreDriver) -> int:
    seq_id = core.add(PROMPT, 1)
    core.run()
    return seq_id


def preempted(core: CoreDriver) -> int:
    seq_id = core.add(PROMPT, 30)
    core.step()
    core.worker_lost()
    core.worker_ready()
    return seq_id


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    ("moment", "budget"),
    [(queued, 64), (between_chunks, 4), (at_the_worker, 64), (in_its_last_step, 64), (preempted, 64)],
)
def test_a01_an_abort_ends_it_and_frees_its_blocks(moment, budget: int, depth: int) -> None:  # type: ignore[no-untyped-def]
    core = CoreDriver(16, 4, SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=budget, depth=depth))
    seq_id = moment(core)
    before = len(core.outputs[seq_id])
    assert core.abort(seq_id)
    assert core.reason(seq_id) is FinishReason.ABORTED
    assert core.core.sequence_blocks(SeqId(seq_id)) == []
    core.run()
    assert len(core.outputs[seq_id]) == before, "nothing is delivered after the abort"
    assert core.core.stats().blocks_active == 0
    assert not core.abort(seq_id)


def test_a01_after_the_end_it_is_a_no_op() -> None:
    core = CoreDriver(16, 4)
    seq_id = after_its_end(core)
    assert not core.abort(seq_id)
    assert core.reason(seq_id) is FinishReason.LENGTH
    assert not core.abort(12345), "nor is an id that never was an error"


def test_a01_freed_blocks_are_handed_out_in_the_next_plan_while_the_old_step_is_in_flight() -> None:
    core = CoreDriver(2, 4, SchedulerConfig(max_num_seqs=1))
    first = core.add([1, 2, 3, 4, 5], 3)
    plan = core.schedule()
    core.abort(first)
    core.add([6, 7, 8, 9, 10], 2)
    reused = core.schedule()
    assert plan is not None
    assert reused is not None
    assert set(reused.table_blocks.tolist()) == set(plan.table_blocks.tolist())
    assert reused.released_rows.tolist() == plan.rows.tolist() == reused.rows.tolist()
    core.run()
    core.check_outputs()


def test_a02_an_aborted_requests_full_blocks_serve_its_retry() -> None:
    core = CoreDriver(16, 4)
    core.abort(at_the_worker(core))
    retry = core.add(PROMPT, 2)
    core.run()
    assert core.cached[retry] == 8

"""The worker comes, goes and comes back: A09 and "when the worker goes" of protocol.md, seen by the core."""

from dataclasses import replace

import pytest

from scheduler_svc.core.plan import FinishReason, SchedulerConfig
from tests.fakes.core_driver import CoreDriver


def test_before_a_worker_is_there_requests_wait_and_are_checked_when_it_comes() -> None:
    core = CoreDriver(8, 4, ready=False)
    fits = core.add([1, 2, 3], 4)
    too_large = core.add(list(range(40)), 4)
    too_long = core.add([1], 100)
    assert core.schedule() is None
    assert core.core.stats().waiting == 3
    core.worker_ready(replace(core.capacity, max_model_len=60))
    assert core.reason(too_large) is FinishReason.KV_POOL
    assert "43" in core.finished[too_large].error
    assert core.reason(too_long) is FinishReason.ERROR
    core.run()
    assert core.reason(fits) is FinishReason.LENGTH
    core.check_outputs()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_worker_lost_again_and_again_costs_no_token(depth: int, every: int) -> None:
    core = CoreDriver(24, 4, SchedulerConfig(depth=depth, max_num_batched_tokens=12))
    requests = [core.add([i, i + 1, *range(i)], 7) for i in range(8)]
    losses = 0
    while core.core.has_work():
        for _ in range(every + losses):  # each life a little longer, so that even the largest gets through
            core.step()
        core.worker_lost()
        core.worker_lost()
        core.worker_ready()
        losses += 1
    core.check_outputs()
    assert {core.reason(seq_id) for seq_id in requests} == {FinishReason.LENGTH}
    assert core.core.stats().counters.worker_losses == 2 * losses - losses
    assert all(finished.preemptions == 0 for finished in core.finished.values())


def test_on_the_new_worker_they_run_in_order_of_arrival() -> None:
    core = CoreDriver(64, 4, SchedulerConfig(max_num_seqs=3))
    requests = [core.add([i] * 5, 9) for i in range(6)]
    core.step()
    core.abort(requests[1])
    core.worker_lost()
    assert core.core.num_in_flight == 0
    core.worker_ready()
    plan = core.schedule()
    assert plan is not None
    assert [setup.seq_id for setup in plan.setups] == [requests[0], requests[2], requests[3]]
    core.run()
    core.check_outputs()


def test_the_new_session_builds_on_no_row_and_its_steps_go_on_counting() -> None:
    core = CoreDriver(16, 4)
    core.add([1, 2, 3], 6)
    core.fill()
    core.worker_lost()
    core.worker_ready()
    plan = core.schedule()
    assert plan is not None
    assert not len(plan.released_rows)
    assert len(plan.setups) == len(plan.rows) == 1
    assert plan.step_id == 3


def test_a_smaller_pool_ends_what_has_outgrown_it_and_keeps_the_rest() -> None:
    core = CoreDriver(16, 4)
    large, small = core.add(list(range(30)), None), core.add([1, 2], 4)
    core.step()
    core.worker_lost()
    core.worker_ready(replace(core.capacity, num_blocks=4))
    assert core.reason(large) is FinishReason.KV_POOL
    core.run()
    assert core.reason(small) is FinishReason.LENGTH
    core.check_outputs()


def test_another_block_size_rehashes_and_hits_among_the_new() -> None:
    core = CoreDriver(16, 4)
    prompt = list(range(12))
    core.add([*prompt, 1], 3)
    core.step()
    core.worker_lost()
    core.worker_ready(replace(core.capacity, block_size=2, num_blocks=32))
    core.run()
    again = core.add([*prompt, 2], 3)
    core.run()
    assert core.cached[again] == 12
    core.check_outputs()


def test_aborting_and_stopping_work_without_a_worker() -> None:
    core = CoreDriver(16, 4)
    first, second, third = (core.add([i, i], 9) for i in range(3))
    core.step()
    core.worker_lost()
    assert core.abort(first)
    assert core.stop(second, 1)
    core.worker_ready()
    core.run()
    assert [core.reason(seq_id).value for seq_id in (first, second, third)] == ["aborted", "stop", "length"]
    core.check_outputs()

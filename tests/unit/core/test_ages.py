"""Ages of blocks and of preempted sequences, on a clock that the test turns."""

import numpy as np

from scheduler_svc.core.ages import AGE_BOUNDS, AgeHistogram, Ages
from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.plan import Capacity, Epoch, NewRequest, SchedulerConfig, SeqId, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.stats import Counters


def test_values_are_counted_up_to_their_bound() -> None:
    histogram = AgeHistogram()
    histogram.observe(np.array([0.0, AGE_BOUNDS[0], 1e9]))
    assert histogram.counts[0] == 2
    assert histogram.counts[-1] == 1
    assert histogram.total == 1e9 + AGE_BOUNDS[0]
    copy = histogram.copy()
    histogram.observe(np.array([1.0]))
    assert sum(copy.counts) == 3


def test_every_block_is_observed_when_its_life_its_idleness_or_its_reuse_ends() -> None:
    ages = Ages()
    pool = BlockPool(2, Counters(), ages)
    taken, _ = pool.take(2)
    pool.cached[taken] = True
    pool.clock.now = 10.0
    pool.release(taken)
    pool.clock.now = 14.0
    pool.share(taken[:1])
    pool.release(taken[:1])
    pool.clock.now = 20.0
    pool.take(2)
    assert (sum(ages.reuse_gap.counts), ages.reuse_gap.total) == (1, 4.0)
    assert (sum(ages.idle.counts), ages.idle.total) == (2, 6.0 + 10.0)
    assert (sum(ages.lifetime.counts), ages.lifetime.total) == (2, 40.0)


def test_the_wait_of_a_preempted_sequence_is_measured_until_it_comes_back() -> None:
    core = Scheduler(SchedulerConfig(watermark_blocks=0, depth=1))
    core.worker_ready(Capacity(Epoch(1), "model", 4, 2, 64, 8, 100))
    for i in range(2):
        core.add(NewRequest(SeqId(i), np.array([i, i + 5], np.int32), max_tokens=6), 0.0)
    now = 0.0
    while core.has_work():
        now += 1.0
        plan = core.schedule(now)
        assert plan is not None
        core.apply(StepResult(plan.step_id, np.full(len(plan.sample_rows), 9, np.int32)), now)
    stats = core.stats()
    assert sum(stats.ages.preempted.counts) == stats.counters.preemptions == 1
    assert stats.ages.preempted.total >= 1.0
    assert sum(stats.ages.lifetime.counts) > 0

"""A04: preemption ends in bounded work, waits for what is in flight, and keeps the order."""

import random

import pytest

from scheduler_svc.core.plan import FinishReason, SchedulerConfig
from tests.fakes.core_driver import CoreDriver


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a04_fifty_mixes_stay_within_the_bounds(prefix_cache: bool, depth: int) -> None:
    """recomputed / useful tokens <= 1.0, preemptions per request <= 4, and a bounded number of steps."""
    preempted = 0
    for seed in range(50):
        core, useful = _mix(seed, prefix_cache, depth)
        steps = core.run(max_steps=4 * useful)
        computed = sum(len(plan.positions) for plan in core.plans)
        wasted = computed - (useful - len(core.requests))  # the last token of each is never computed
        assert wasted <= useful
        assert max(finished.preemptions for finished in core.finished.values()) <= 4
        assert {finished.reason for finished in core.finished.values()} == {FinishReason.LENGTH}
        assert steps <= useful
        preempted += core.core.stats().counters.preemptions
    assert preempted > 0


def _mix(seed: int, prefix_cache: bool, depth: int) -> tuple[CoreDriver, int]:
    """Two long prompts in a pool that fits 1.2 of them, and several short ones. Returns useful tokens too."""
    chance = random.Random(seed)
    size, length = 4, chance.randint(40, 100)
    num_blocks = int(1.2 * -(-length // size))
    config = SchedulerConfig(
        max_num_seqs=16,
        max_num_batched_tokens=chance.choice([16, 32]),
        prefix_cache=prefix_cache,
        depth=depth,
    )
    core = CoreDriver(num_blocks, size, config)
    shapes = [(length - chance.randint(0, 5), chance.randint(5, 15)) for _ in range(2)]
    shapes += [(chance.randint(2, 15), chance.randint(2, 20)) for _ in range(chance.randint(3, 8))]
    chance.shuffle(shapes)
    useful = 0
    for prompt_len, max_tokens in shapes:
        max_tokens = min(max_tokens, num_blocks * size - prompt_len)
        core.add([chance.randrange(900) for _ in range(prompt_len)], max_tokens)
        useful += prompt_len + max_tokens
    return core, useful


def test_a_preemption_waits_for_the_step_in_flight_whose_stop_may_make_it_needless() -> None:
    core = CoreDriver(4, 2, SchedulerConfig(watermark_blocks=0))
    stopping = core.add([1, 2], 5)
    other = core.add([3, 4], 5)
    core.fill()
    core.answer()
    core.fill()
    core.stop(stopping, 1)
    core.run()
    assert core.core.stats().counters.preemptions == 0
    assert core.reason(other) is FinishReason.LENGTH
    core.check_outputs()


def test_the_token_of_a_step_in_flight_is_delivered_before_its_row_is_preempted() -> None:
    core = CoreDriver(4, 2, SchedulerConfig(watermark_blocks=0))
    core.add([1, 2], 6)
    younger = core.add([3, 4], 6)
    planned = 0
    while True:
        plan = core.schedule()
        if core.core.stats().counters.preemptions:
            break
        planned += plan is not None and 1 in plan.sample_rows
        if plan is None or len(core.in_flight) == 2:
            core.answer()
    assert len(core.outputs[younger]) == planned > 0
    core.run()
    core.check_outputs()
    assert core.finished[younger].preemptions >= 1


def test_none_is_admitted_in_the_step_that_preempted() -> None:
    core = CoreDriver(5, 2, SchedulerConfig(watermark_blocks=0, max_num_seqs=3))
    for i in range(3):
        core.add([10 * i, 10 * i + 1], 6)
    preemptions = 0
    while core.core.has_work():
        plan = core.schedule()
        now = core.core.stats().counters.preemptions
        if plan is not None and now > preemptions:
            assert plan.setups == ()
        preemptions = now
        if core.in_flight and (plan is None or len(core.in_flight) == 2):
            core.answer()
    assert preemptions > 0
    core.check_outputs()


def test_i8_a_plan_that_cannot_be_made_changes_nothing() -> None:
    """The scheduler waits for the step in flight: asked again and again, it changes neither pool nor
    counters.
    """
    core = CoreDriver(4, 2, SchedulerConfig(watermark_blocks=0))
    core.add([1, 2], 6)
    core.add([3, 4], 6)
    while core.schedule() is not None or len(core.in_flight) != 1:
        if len(core.in_flight) == 2:
            core.answer()
    before = core.core.stats(), core.core.pool_map().state.tolist(), [*core.core.sequences()]
    for _ in range(3):
        assert core.schedule() is None
    assert (core.core.stats(), core.core.pool_map().state.tolist(), [*core.core.sequences()]) == before
    core.run()
    core.check_outputs()

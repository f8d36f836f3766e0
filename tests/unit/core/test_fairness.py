"""A13: the bounds that core/prefill.py states, and priorities."""

from collections.abc import Iterable

from scheduler_svc.core.plan import SchedulerConfig, StepPlan
from tests.fakes.core_driver import CoreDriver


def rows_of(core: CoreDriver, seq_ids: Iterable[int]) -> set[int]:
    wanted = set(seq_ids)
    return {setup.row for plan in core.plans for setup in plan.setups if setup.seq_id in wanted}


def tokens_in(plan: StepPlan, row: int) -> int:
    return int(plan.query_lens[plan.rows == row].sum())


def test_a13_decoders_get_a_token_in_every_step_and_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    core = CoreDriver(
        4000, 16, SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=32), max_model_len=40_000
    )
    decoders = [core.add([i], 500) for i in range(8)]
    core.fill()
    while core.in_flight:
        core.answer()
    long = core.add([i % 700 for i in range(32_000)], 1)
    first = len(core.plans)
    core.step()
    short = core.add(list(range(50)), 1)
    core.step()
    core.step()
    core.step()
    assert len(core.outputs[short]) == 1, "admitted and computed in one step, delivered with its answer"
    assert len(core.outputs[long]) == 0
    for _ in range(20):
        core.step()
    decode_rows = rows_of(core, decoders)
    for plan in core.plans[first:]:
        assert decode_rows <= set(plan.rows.tolist())


def test_a13_a_long_prompt_ends_within_its_bound_under_endless_arrivals() -> None:
    budget, length = 64, 600
    core = CoreDriver(400, 16, SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=64))
    decoders = 20
    for i in range(decoders):
        core.add([i], 400)
    core.fill()
    long = core.add([i % 700 for i in range(length)], 1)
    steps = 0
    while not core.outputs[long]:
        for i in range(3):
            core.add([steps % 900, i, *range(25)], 1)
        core.step()
        steps += 1
        assert steps < 500
    assert steps <= 2 * length / (budget - decoders - 6) + 4, "half of what decodes leave, and the depth"


def test_a13_constant_decodes_leave_a_prefill_its_share() -> None:
    budget = 32
    core = CoreDriver(400, 4, SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=1000))
    for i in range(60):
        core.add([i], 40)
    for _ in range(6):
        core.step()
    assert core.core.stats().max_rows == budget - budget // 16
    assert core.core.stats().running == budget - budget // 16
    long = core.add(list(range(100)), 1, priority=-1)
    core.run()
    core.check_outputs()
    assert core.outputs[long]


def test_the_oldest_prefill_gets_half_and_the_shortest_the_other_half() -> None:
    core = CoreDriver(400, 16, SchedulerConfig(max_num_batched_tokens=100, max_num_seqs=8, depth=1))
    oldest = core.add(list(range(700)), 1)
    core.step()
    other, short = core.add(list(range(100, 400)), 1), core.add(list(range(500, 530)), 1)
    core.step()
    plan = core.plans[-1]
    (oldest_row,), (other_row,) = rows_of(core, [oldest]), rows_of(core, [other])
    assert tokens_in(plan, oldest_row) == 50
    assert tokens_in(plan, other_row) == 50
    core.step()
    plan = core.plans[-1]
    (short_row,) = rows_of(core, [short])
    assert [tokens_in(plan, row) for row in (oldest_row, other_row, short_row)] == [50, 20, 30]


def test_a_better_priority_is_admitted_first_and_served_first() -> None:
    core = CoreDriver(100, 4, SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=16))
    order = [core.add([i] * 6, 2, priority=priority) for i, priority in enumerate([3, 1, 2, 0])]
    core.run()
    assert list(core.finished) == [order[3], order[1], order[2], order[0]]


def test_the_queue_is_served_in_order_and_nobody_overtakes_one_that_does_not_fit() -> None:
    core = CoreDriver(8, 4, SchedulerConfig(watermark_blocks=0))
    core.add(list(range(20)), 8)
    core.step()
    big = core.add(list(range(100, 120)), 2)
    small = core.add([1], 1)
    core.step()
    assert small not in core.cached
    core.run()
    assert list(core.cached).index(big) < list(core.cached).index(small)

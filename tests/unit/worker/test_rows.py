"""Every bound of a plan, checked before the device is touched: the error names the field."""

from typing import Any

import numpy as np
import pytest

from gpu_worker.errors import PlanError
from gpu_worker.rows import Limits, RowTable
from gpu_worker.wire import Plan, RowSetup, Sampling
from tests.fixtures.hand_plans import GREEDY, HandPlanner, HandSequence

LIMITS = Limits(
    num_blocks=16, block_size=4, max_batch_tokens=32, max_batch_seqs=4, max_model_len=24, vocab_size=100
)


def ids(*values: int) -> Any:
    return np.asarray(values, np.int32)


def started() -> tuple[RowTable, HandPlanner, HandSequence, HandSequence]:
    """Two rows that have sampled: row 1 with 5 tokens of context, row 2 with 8 (its block is exactly
    full).
    """
    table, planner = RowTable(LIMITS), HandPlanner(LIMITS.num_blocks, LIMITS.block_size)
    first, second = HandSequence(1, [1, 2, 3, 4, 5]), HandSequence(2, list(range(8)))
    table.apply(planner.plan([(first, 5), (second, 8)]))
    return table, planner, first, second


def steady(**changes: Any) -> tuple[RowTable, Plan]:
    table, planner, first, second = started()
    return table, planner.plan([(first, 1), (second, 1)], **changes)


def test_a_good_plan_passes() -> None:
    table, plan = steady()
    table.apply(plan)
    assert plan.input_ids.tolist() == [-1, -1]


BAD: list[tuple[str, dict[str, Any]]] = [
    ("released_rows", {"released_rows": ids(4)}),
    ("released_rows", {"released_rows": ids(-1)}),
    ("row_setups.row", {"setups": (RowSetup(4, 1, GREEDY),)}),
    ("row_setups.row", {"setups": (RowSetup(1, 1, GREEDY),)}),
    ("row_setups.prompt_len", {"setups": (RowSetup(0, 0, GREEDY),)}),
    ("row_setups.prompt_len", {"setups": (RowSetup(0, 25, GREEDY),)}),
    ("row_setups.sampling.temperature", {"setups": (RowSetup(0, 1, Sampling(-0.5, 1, 0, 0, 0)),)}),
    ("row_setups.sampling.temperature", {"setups": (RowSetup(0, 1, Sampling(float("nan"), 1, 0, 0, 0)),)}),
    ("row_setups.sampling.temperature", {"setups": (RowSetup(0, 1, Sampling(float("inf"), 1, 0, 0, 0)),)}),
    ("row_setups.sampling.top_p", {"setups": (RowSetup(0, 1, Sampling(1, 0.0, 0, 0, 0)),)}),
    ("row_setups.sampling.top_p", {"setups": (RowSetup(0, 1, Sampling(1, 1.5, 0, 0, 0)),)}),
    ("row_setups.sampling.min_p", {"setups": (RowSetup(0, 1, Sampling(1, 1, 0, 1.5, 0)),)}),
    ("table_rows", {"table_rows": ids(1, 2)}),
    ("table_rows", {"table_rows": ids(3), "table_offsets": ids(0), "table_blocks": ids(0)}),
    ("table_rows", {"table_rows": ids(9), "table_offsets": ids(0), "table_blocks": ids(0)}),
    ("table_offsets", {"table_rows": ids(1), "table_offsets": ids(6), "table_blocks": ids(0)}),
    ("table_offsets", {"table_rows": ids(1), "table_offsets": ids(-1), "table_blocks": ids(0)}),
    ("table_offsets", {"table_rows": ids(1), "table_offsets": ids(4), "table_blocks": ids(0)}),
    ("table_offsets", {"table_rows": ids(1, 1), "table_offsets": ids(1, 1), "table_blocks": ids(0, 1)}),
    ("table_blocks", {"table_rows": ids(1), "table_offsets": ids(1), "table_blocks": ids(16)}),
    ("table_blocks", {"table_rows": ids(1), "table_offsets": ids(1), "table_blocks": ids(-1)}),
    ("zero_blocks", {"zero_blocks": ids(16)}),
    ("copy_pairs", {"copy_pairs": ids(0, 16).reshape(1, 2)}),
    ("copy_pairs", {"copy_pairs": ids(0, 2, 1, 2).reshape(2, 2)}),
    ("copy_pairs", {"copy_pairs": ids(0, 1, 1, 2).reshape(2, 2)}),
    ("rows", {"rows": ids(1, 3)}),
    ("rows", {"rows": ids(1, 1)}),
    ("rows", {"rows": ids(1, 40)}),
    ("rows", {"rows": ids(0, 1, 2, 3, 1)}),
    ("query_lens", {"query_lens": ids(40, 1)}),
    ("input_ids", {"input_ids": ids(-1)}),
    ("input_ids", {"input_ids": ids(-1, 100)}),
    ("input_ids", {"input_ids": ids(-2, 5)}),
    ("input_ids", {"input_ids": ids(100, 5)}),
    ("input_ids", {"input_ids": ids(5, 100)}),
    ("input_ids", {"input_ids": ids(2**31 - 1, 5)}),
    ("input_ids", {"input_ids": ids(-(2**31), -1)}),
    ("input_ids", {"input_ids": ids(2**31 - 1, -1)}),
    ("positions", {"positions": ids(5)}),
    ("positions", {"positions": ids(4, 8)}),
    ("positions", {"positions": ids(-1, 8)}),
    ("context_lens", {"context_lens": ids(25, 9)}),
    ("context_lens", {"context_lens": ids(0, 9)}),
    ("context_lens", {"context_lens": ids(12, 9)}),
    ("slot_mapping", {"slot_mapping": ids(1)}),
    ("slot_mapping", {"slot_mapping": ids(64, 65)}),
    ("slot_mapping", {"slot_mapping": ids(-1, 0)}),
    ("slot_mapping", {"slot_mapping": ids(3, 3)}),
    ("slot_mapping", {"slot_mapping": ids(62, 63)}),
    ("sample_positions", {"sample_positions": ids(0, 2)}),
    ("sample_positions", {"sample_positions": ids(0, -1)}),
    ("sample_rows", {"sample_rows": ids(1, 3)}),
    ("sample_rows", {"sample_rows": ids(1, 1)}),
]


@pytest.mark.parametrize(("field", "change"), BAD, ids=[f"{n}-{f}" for n, (f, _) in enumerate(BAD)])
def test_a_bad_plan_is_refused_by_field(field: str, change: dict[str, Any]) -> None:
    table, plan = steady(**change)
    with pytest.raises(PlanError) as caught:
        table.apply(plan)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_i7_two_tokens_never_share_a_slot() -> None:
    table, planner, first, second = started()
    second.table[-1] = first.table[-1]
    with pytest.raises(PlanError, match=r"slot_mapping: .*share a slot"):
        table.apply(planner.plan([(first, 2), (second, 1)], slot_mapping=ids(20, 21, 21)))


def test_minus_one_needs_a_sample_since_the_set_up() -> None:
    table, planner = RowTable(LIMITS), HandPlanner(LIMITS.num_blocks, LIMITS.block_size)
    sequence = HandSequence(0, [1, 2, 3])
    table.apply(planner.plan([(sequence, 2)]))
    with pytest.raises(PlanError, match="input_ids: -1 for row 0, which has not sampled"):
        table.apply(planner.plan([(sequence, 1)], input_ids=ids(-1)))


def test_a_row_set_up_again_has_not_sampled() -> None:
    table, planner, first, _ = started()
    planner.release(first)
    again = HandSequence(1, [7, 8])
    table.apply(planner.plan([(again, 1)]))
    with pytest.raises(PlanError, match="input_ids: -1 for row 1"):
        table.apply(planner.plan([(again, 1)], input_ids=ids(-1)))


def test_a_released_row_is_gone() -> None:
    table, planner, first, second = started()
    planner.release(first)
    table.apply(planner.plan([(second, 1)]))
    with pytest.raises(PlanError, match="rows: row 1 is not set up"):
        table.apply(planner.plan([(first, 1)]))


def test_a_sample_inside_the_prompt_is_refused() -> None:
    table, planner = RowTable(LIMITS), HandPlanner(LIMITS.num_blocks, LIMITS.block_size)
    plan = planner.plan([(HandSequence(0, [1, 2, 3]), 2)], sample_positions=ids(1), sample_rows=ids(0))
    with pytest.raises(PlanError, match="sample_positions: row 0 samples inside its prompt"):
        table.apply(plan)


def test_several_rows_may_sample_one_position() -> None:
    """n > 1 forks at the end of a prefill: rows that share no batch entry sample the same logits."""
    table, planner = RowTable(LIMITS), HandPlanner(LIMITS.num_blocks, LIMITS.block_size)
    sequence = HandSequence(0, [1, 2, 3])
    setups = tuple(RowSetup(row, 3, GREEDY) for row in range(3))
    plan = planner.plan(
        [(sequence, 3)], setups=setups, sample_positions=ids(2, 2, 2), sample_rows=ids(0, 1, 2)
    )
    table.apply(plan)
    assert table.sampled.tolist() == [True, True, True, False]


def test_a_full_block_then_the_next() -> None:
    """kv-cache.md: decode exactly at a block boundary needs the next block in the table."""
    table, planner, _, second = started()
    plan = planner.plan([(second, 1)])
    assert plan.table_offsets.tolist() == [2]
    table.apply(plan)
    missing = planner.plan([(second, 4)], table_rows=ids(), table_offsets=ids(), table_blocks=ids())
    with pytest.raises(PlanError, match="context_lens: the table of row 2 has only 3 blocks"):
        table.apply(missing)


def test_a_step_without_rows_only_keeps_house() -> None:
    table, planner, first, _ = started()
    planner.release(first)
    table.apply(planner.plan([]))
    assert table.live.tolist() == [False, False, True, False]


@pytest.mark.parametrize(("field", "change"), BAD, ids=[f"{n}-{f}" for n, (f, _) in enumerate(BAD)])
def test_a_bad_plan_that_the_device_may_be_given_has_only_numbers_in_range(
    field: str, change: dict[str, Any]
) -> None:
    """What `enter` lets pass, for a captured step starts before `verify`."""
    table, plan = steady(**change)
    try:
        table.enter(plan)
    except PlanError:
        return  # named as in the test above
    bounds = {
        "rows": LIMITS.max_batch_seqs,
        "sample_rows": LIMITS.max_batch_seqs,
        "table_rows": LIMITS.max_batch_seqs,
        "table_offsets": LIMITS.table_width,
        "table_blocks": LIMITS.num_blocks,
        "positions": LIMITS.max_model_len,
        "context_lens": LIMITS.max_model_len + 1,
        "slot_mapping": LIMITS.num_blocks * LIMITS.block_size,
        "sample_positions": len(plan.input_ids),
        "input_ids": LIMITS.vocab_size,
        "zero_blocks": LIMITS.num_blocks,
        "copy_pairs": LIMITS.num_blocks,
    }
    for name, bound in bounds.items():
        values = getattr(plan, name)
        assert (values >= (-1 if name == "input_ids" else 0)).all()
        assert (values < bound).all()
    with pytest.raises(PlanError, match=rf"^{field}: "):
        table.verify(plan)

"""Plans off the wire: what is left out is filled in, what is malformed is named."""

import numpy as np
import pytest

from gpu_worker.errors import PlanError
from gpu_worker.wire import decode_plan, encode_failure, encode_result
from octavo import arrays
from octavo.worker.v1 import worker_pb2
from tests.fixtures.hand_plans import NO_IDS, HandPlanner, HandSequence, to_message


def pack(*values: int) -> bytes:
    return arrays.encode(np.asarray(values, np.int32))


BASE_ROWS = np.asarray([3, 1], np.int32)


def test_a_steady_decode_step_says_almost_nothing() -> None:
    message = worker_pb2.StepPlan(
        step_id=5, base_step=4, same_rows=True, context_lens=pack(9, 4), slot_mapping=pack(8, 3)
    )
    plan = decode_plan(message, BASE_ROWS)
    assert plan.rows.tolist() == [3, 1]
    assert plan.query_lens.tolist() == [1, 1]
    assert plan.input_ids.tolist() == [-1, -1]
    assert plan.positions.tolist() == [8, 3]
    assert plan.sample_positions.tolist() == [0, 1]
    assert plan.sample_rows.tolist() == [3, 1]


def test_rows_of_any_length() -> None:
    message = worker_pb2.StepPlan(
        rows=pack(0, 2, 5),
        query_lens=pack(3, 1, 2),
        context_lens=pack(3, 7, 10),
        input_ids=pack(1, 2, 3, -1, 5, 6),
    )
    plan = decode_plan(message, NO_IDS)
    assert plan.positions.tolist() == [0, 1, 2, 6, 8, 9]
    assert plan.sample_positions.tolist() == [2, 3, 5]
    assert plan.sample_rows.tolist() == [0, 2, 5]


def test_no_samples() -> None:
    plan = decode_plan(worker_pb2.StepPlan(rows=pack(0), context_lens=pack(1), no_samples=True), NO_IDS)
    assert len(plan.sample_rows) == len(plan.sample_positions) == 0


def test_a_full_message_reads_as_the_plan_that_made_it() -> None:
    planner = HandPlanner(16, 4)
    first = HandSequence(1, [1, 2, 3, 4, 5])
    plan = planner.plan([(first, 5)], zero_blocks=np.asarray([2], np.int32))
    read = decode_plan(to_message(plan, 0, 0), NO_IDS)
    for name in plan.__slots__:
        np.testing.assert_array_equal(getattr(read, name), getattr(plan, name), err_msg=name)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("rows", worker_pb2.StepPlan(rows=b"123")),
        ("context_lens", worker_pb2.StepPlan(rows=pack(1, 2), context_lens=pack(1))),
        ("query_lens", worker_pb2.StepPlan(rows=pack(1), context_lens=pack(1), query_lens=pack(1, 1))),
        ("query_lens", worker_pb2.StepPlan(rows=pack(1), context_lens=pack(1), query_lens=pack(0))),
        ("same_rows", worker_pb2.StepPlan(same_rows=True, context_lens=pack(1, 1))),
        ("rows", worker_pb2.StepPlan(same_rows=True, base_step=1, rows=pack(1), context_lens=pack(1))),
        ("no_samples", worker_pb2.StepPlan(no_samples=True, sample_rows=pack(1))),
        ("sample_rows", worker_pb2.StepPlan(sample_positions=pack(1, 2), sample_rows=pack(1))),
        ("copy_pairs", worker_pb2.StepPlan(block_ops=worker_pb2.BlockOps(copy_pairs=pack(1)))),
        ("swap_in_pairs", worker_pb2.StepPlan(block_ops=worker_pb2.BlockOps(swap_in_pairs=pack(1)))),
        ("swap_out_pairs", worker_pb2.StepPlan(block_ops=worker_pb2.BlockOps(swap_out_pairs=pack(1)))),
        (
            "row_setups.sampling.logit_bias_ids",
            worker_pb2.StepPlan(
                row_setups=[worker_pb2.RowSetup(sampling=worker_pb2.SamplingParams(logit_bias_ids=b"123"))]
            ),
        ),
        ("row_setups.output_ids", worker_pb2.StepPlan(row_setups=[worker_pb2.RowSetup(output_ids=b"1")])),
    ],
)
def test_malformed_plans_name_the_field(field: str, message: worker_pb2.StepPlan) -> None:
    with pytest.raises(PlanError) as caught:
        decode_plan(message, BASE_ROWS)
    assert caught.value.field == field


def test_a_huge_query_len_costs_nothing() -> None:
    """Omitted arrays are not filled in for more tokens than any step has."""
    message = worker_pb2.StepPlan(rows=pack(0), query_lens=pack(2**31 - 1), context_lens=pack(2**31 - 1))
    plan = decode_plan(message, NO_IDS)
    assert len(plan.input_ids) == len(plan.positions) == 0


def test_answers_name_the_plans_own_session_and_step() -> None:
    plan = worker_pb2.StepPlan(session_id=7, worker_epoch=8, step_id=9)
    result = encode_result(plan, np.asarray([4, -1], np.int32), [3], (0.5, 0.25, 0.125)).result
    assert (result.session_id, result.worker_epoch, result.step_id) == (7, 8, 9)
    assert arrays.decode(result.token_ids, "token_ids").tolist() == [4, -1]
    assert result.failed_rows[0].row == 3
    assert result.failed_rows[0].reason == worker_pb2.ROW_FAILURE_REASON_NON_FINITE_LOGITS
    barred = encode_result(plan, np.asarray([-1, -1], np.int32), [2, 3], (0, 0, 0), barred_rows={2}).result
    assert [(row.row, row.reason) for row in barred.failed_rows] == [
        (2, worker_pb2.ROW_FAILURE_REASON_GRAMMAR_FAILED),
        (3, worker_pb2.ROW_FAILURE_REASON_NON_FINITE_LOGITS),
    ]
    assert (result.forward_seconds, result.block_move_seconds, result.gap_seconds) == (0.5, 0.25, 0.125)
    assert not result.HasField("failure")
    failed = encode_failure(plan, worker_pb2.STEP_FAILURE_REASON_INVALID_PLAN, "rows: 9").result
    assert failed.step_id == 9
    assert failed.failure.detail == "rows: 9"

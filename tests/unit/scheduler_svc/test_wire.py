"""The wire form of a plan, rule by rule, and the repair of odd answers (A26)."""

from typing import Any

import numpy as np
import pytest

from octavo import arrays
from octavo.worker.v1 import worker_pb2
from scheduler_svc.wire import StepNumbering, decode_result, encode_plan
from tests.unit.scheduler_svc.plans import ints, plan, setup

HERE = StepNumbering(session_id=11, epoch=22, step_offset=40)
VOCAB = 100


def array(data: bytes) -> list[int]:
    return list(arrays.decode(data, "test").tolist())


def test_the_first_plan_of_a_session_is_step_one_and_builds_on_none() -> None:
    message = encode_plan(plan(41), None, HERE)
    assert (message.session_id, message.worker_epoch, message.step_id, message.base_step) == (11, 22, 1, 0)


def test_later_plans_build_on_the_one_before() -> None:
    message = encode_plan(plan(43), plan(42), HERE)
    assert (message.step_id, message.base_step) == (3, 2)


def test_a_steady_decode_step_carries_context_lens_and_slots_alone() -> None:
    message = encode_plan(plan(2, rows=[0, 3, 5]), plan(1, rows=[0, 3, 5]))
    assert message.same_rows
    assert [name.name for name, _ in message.ListFields()] == [
        "step_id", "base_step", "same_rows", "context_lens", "slot_mapping",
    ]  # fmt: skip


def test_other_rows_are_told() -> None:
    message = encode_plan(plan(2, rows=[0, 5]), plan(1, rows=[0, 3]))
    assert not message.same_rows
    assert array(message.rows) == [0, 5]


def test_a_plan_without_rows_says_so_even_after_one_without_rows() -> None:
    message = encode_plan(plan(2, rows=[]), plan(1, rows=[]))
    assert not message.same_rows
    assert message.no_samples
    assert message.rows == b""


def test_prefill_rows_carry_lengths_and_ids() -> None:
    message = encode_plan(
        plan(1, rows=[0, 1], query_lens=[3, 1], input_ids=ints(7, 8, 9, -1), setups=(setup(0), setup(1))),
        None,
    )
    assert array(message.query_lens) == [3, 1]
    assert array(message.input_ids) == [7, 8, 9, -1]
    assert message.positions == b""
    assert [row.row for row in message.row_setups] == [0, 1]


def test_positions_other_than_the_tail_are_told() -> None:
    message = encode_plan(plan(1, query_lens=[2], context_lens=[6], positions=ints(1, 2)), None)
    assert array(message.positions) == [1, 2]


def test_a_chunk_that_samples_nothing_says_so() -> None:
    message = encode_plan(plan(1, query_lens=[4], sample_positions=ints(), sample_rows=ints()), None)
    assert message.no_samples


def test_samples_other_than_each_last_token_are_told() -> None:
    message = encode_plan(
        plan(1, rows=[0, 1], query_lens=[3, 1], sample_positions=ints(3), sample_rows=ints(1)), None
    )
    assert (array(message.sample_positions), array(message.sample_rows)) == ([3], [1])
    assert not message.no_samples


def test_sampling_parameters_cross_whole() -> None:
    given = setup(2, 9, temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, seed=2**64 - 1)
    (row,) = encode_plan(plan(1, setups=(given,)), None).row_setups
    sampling = row.sampling
    assert (row.row, row.prompt_len, sampling.seed, sampling.top_k) == (2, 9, 2**64 - 1, 7)
    assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0.5, 0.25, 0.125)


@pytest.mark.parametrize(("rows", "limit"), [(256, 4500), (1024, 18_000)])
def test_a_steady_decode_plan_is_small(rows: int, limit: int) -> None:
    """One row in 16 opens a block at each step."""
    numbers = list(range(rows))
    opened = ints(*range(0, rows, 16))
    step = plan(
        2,
        rows=numbers,
        context_lens=[1024] * rows,
        table_rows=opened,
        table_offsets=opened,
        table_blocks=opened,
    )
    assert encode_plan(step, plan(1, rows=numbers)).ByteSize() <= limit


def result(step: int = 1, tokens: Any = (5, 6), **fields: Any) -> worker_pb2.StepResult:
    return worker_pb2.StepResult(step_id=step, token_ids=arrays.encode(ints(*tokens)), **fields)


def failed(row: int, reason: int = worker_pb2.ROW_FAILURE_REASON_NON_FINITE_LOGITS) -> worker_pb2.RowFailure:
    return worker_pb2.RowFailure(row=row, reason=reason)  # type: ignore[arg-type]


TWO = plan(7, rows=[3, 8])

ODD: dict[str, tuple[worker_pb2.StepResult, list[int], dict[int, str], tuple[str, ...]]] = {
    "right": (result(), [5, 6], {}, ()),
    "a token too few": (result(tokens=[5]), [5, -1], {8: "INVALID_TOKEN"},
                        ("missing_tokens", "invalid_token")),
    "a token too many": (result(tokens=[5, 6, 7]), [5, 6], {}, ("extra_tokens",)),
    "outside the vocabulary": (result(tokens=[5, VOCAB]), [5, -1], {8: "INVALID_TOKEN"}, ("invalid_token",)),
    "negative": (result(tokens=[-2, 6]), [-1, 6], {3: "INVALID_TOKEN"}, ("invalid_token",)),
    "a failed row": (result(tokens=[-1, 6], failed_rows=[failed(3)]), [-1, 6], {3: "NON_FINITE_LOGITS"}, ()),
    "a row whose grammar failed": (
        result(tokens=[-1, 6], failed_rows=[failed(3, worker_pb2.ROW_FAILURE_REASON_GRAMMAR_FAILED)]),
        [-1, 6], {3: "GRAMMAR_FAILED"}, ()),
    "a failed row with a token": (result(failed_rows=[failed(3)]), [-1, 6], {3: "NON_FINITE_LOGITS"}, ()),
    "an unknown row": (result(failed_rows=[failed(99)]), [5, 6], {}, ("unknown_row",)),
    "a reason of a newer worker": (result(tokens=[-1, 6], failed_rows=[failed(3, 77)]), [-1, 6],
                                   {3: "UNSPECIFIED"}, ()),
    "bytes that are no int32": (worker_pb2.StepResult(step_id=1, token_ids=b"abc"), [-1, -1],
                                {3: "INVALID_TOKEN", 8: "INVALID_TOKEN"},
                                ("malformed_tokens", "missing_tokens", "invalid_token", "invalid_token")),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a26_an_odd_answer_is_made_to_fit_and_costs_only_its_row(name: str) -> None:
    message, tokens, rows, oddities = ODD[name]
    decoded = decode_result(message, TWO, VOCAB)
    assert decoded.result.token_ids.tolist() == tokens
    assert dict(decoded.result.failed_rows) == rows
    assert decoded.oddities == oddities
    assert decoded.result.failure is None
    assert decoded.result.step_id == 7


def test_a_failed_step_has_no_tokens_and_says_why() -> None:
    failure = worker_pb2.StepFailure(
        reason=worker_pb2.STEP_FAILURE_REASON_INVALID_PLAN, detail="rows: 9" * 100
    )
    decoded = decode_result(worker_pb2.StepResult(step_id=1, failure=failure), TWO, VOCAB)
    assert decoded.failure_reason == "INVALID_PLAN"
    assert decoded.result.failure is not None
    assert decoded.result.failure.startswith("INVALID_PLAN: rows: 9")
    assert len(decoded.result.failure) < 300
    assert decoded.result.token_ids.tolist() == [-1, -1]
    assert decoded.oddities == ()


def test_the_times_of_a_result_cross() -> None:
    decoded = decode_result(result(forward_seconds=0.5, block_move_seconds=0.25, gap_seconds=0.125), TWO)
    assert (decoded.forward_seconds, decoded.block_move_seconds, decoded.gap_seconds) == (0.5, 0.25, 0.125)


def test_arrays_of_the_core_are_never_written() -> None:
    step = plan(1, rows=[0, 1], query_lens=[3, 1])
    before = {name: np.copy(getattr(step, name)) for name in ("context_lens", "positions", "query_lens")}
    encode_plan(step, None)
    assert all(np.array_equal(getattr(step, name), value) for name, value in before.items())

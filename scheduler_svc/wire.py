"""A step on the wire: the core's plan to protobuf, the worker's result back.

Owns the compression of a plan against the one sent before it, and the repair of odd answers; knows neither
the stream nor the engine. Invariant: a plan decoded by the rules of worker.proto has the arrays it was
encoded from, and a decoded result has exactly one token or one failure for each sample of its plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from octavo import arrays
from octavo.errors import InvalidArgument
from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.plan import SAMPLED_LAST, Int32Array, RowSetup, StepId, StepPlan, StepResult

_ROW_REASON = "ROW_FAILURE_REASON_"
_STEP_REASON = "STEP_FAILURE_REASON_"
_DETAIL_LIMIT = 256
_ONE = np.int32(1)
_COUNTING = np.arange(4096, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class StepNumbering:
    """How a session counts: wire step = core step_id - step_offset, so that its first step is 1."""

    session_id: int = 0
    epoch: int = 0
    step_offset: int = 0


@dataclass(frozen=True, slots=True)
class DecodedResult:
    """A result that fits its plan. oddities: kinds of what had to be repaired. Times in seconds."""

    result: StepResult
    oddities: tuple[str, ...]
    failure_reason: str
    forward_seconds: float
    block_move_seconds: float
    gap_seconds: float


def encode_plan(
    plan: StepPlan, previous: StepPlan | None, numbering: StepNumbering | None = None
) -> worker_pb2.StepPlan:
    """The message of a plan. previous: the plan sent before it in this session, None for the first."""
    at = numbering or StepNumbering()
    step = plan.step_id - at.step_offset
    message = worker_pb2.StepPlan(
        session_id=at.session_id,
        worker_epoch=at.epoch,
        step_id=step,
        base_step=0 if previous is None else step - 1,
    )
    if plan.released_rows.size:
        message.released_rows = arrays.encode(plan.released_rows)
    for setup in plan.setups:
        _encode_setup(setup, message.row_setups.add())
    if plan.table_rows.size:
        message.table_rows = arrays.encode(plan.table_rows)
        message.table_offsets = arrays.encode(plan.table_offsets)
        message.table_blocks = arrays.encode(plan.table_blocks)
    if plan.swap_out_pairs.size:
        message.block_ops.swap_out_pairs = arrays.encode(plan.swap_out_pairs)
    if plan.swap_in_pairs.size:
        message.block_ops.swap_in_pairs = arrays.encode(plan.swap_in_pairs)
    if plan.copy_pairs.size:
        message.block_ops.copy_pairs = arrays.encode(plan.copy_pairs)
    if plan.zero_blocks.size:
        message.block_ops.zero_blocks = arrays.encode(plan.zero_blocks)
    _encode_batch(plan, previous, message)
    return message


def _encode_setup(setup: RowSetup, message: worker_pb2.RowSetup) -> None:
    message.row, message.prompt_len, message.grammar = setup.row, setup.prompt_len, setup.sampling.grammar
    if setup.token_ids.size:
        message.prompt_ids = arrays.encode(setup.token_ids[: setup.prompt_len])
        message.output_ids = arrays.encode(setup.token_ids[setup.prompt_len :])
    params = setup.sampling
    message.sampling.CopyFrom(
        worker_pb2.SamplingParams(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            seed=params.seed,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
            logprobs=params.logprobs,
            prompt_logprobs=params.prompt_logprobs,
        )
    )
    if params.logit_bias:
        ids, values = zip(*params.logit_bias, strict=True)
        message.sampling.logit_bias_ids = arrays.encode(np.array(ids, np.int32))
        message.sampling.logit_bias_values.extend(values)
    if params.suppressed_ids:
        message.sampling.suppressed_ids = arrays.encode(np.array(params.suppressed_ids, np.int32))
        message.sampling.min_tokens = params.min_tokens


def _encode_batch(plan: StepPlan, previous: StepPlan | None, message: worker_pb2.StepPlan) -> None:
    if previous is not None and plan.rows.size and _equal(plan.rows, previous.rows):
        message.same_rows = True
    else:
        message.rows = arrays.encode(plan.rows)
    decodes_only = plan.input_ids.size == plan.rows.size
    if decodes_only:
        tail, last_tokens = plan.context_lens - _ONE, _counting(plan.rows.size)
    else:
        message.query_lens = arrays.encode(plan.query_lens)
        ends = plan.query_lens.cumsum(dtype=np.int32)
        tail, last_tokens = _tail_positions(plan, ends), ends - _ONE
    message.context_lens = arrays.encode(plan.context_lens)
    if not _all_sampled_last(plan.input_ids):
        message.input_ids = arrays.encode(plan.input_ids)
    if not _equal(plan.positions, tail):
        message.positions = arrays.encode(plan.positions)
    message.slot_mapping = arrays.encode(plan.slot_mapping)
    if not plan.sample_rows.size:
        message.no_samples = True
    elif not (_equal(plan.sample_positions, last_tokens) and _equal(plan.sample_rows, plan.rows)):
        message.sample_positions = arrays.encode(plan.sample_positions)
        message.sample_rows = arrays.encode(plan.sample_rows)


def _all_sampled_last(ids: Int32Array) -> bool:
    """Whether no id is given. Given ones are a prompt's, whose tokens come last."""
    return not ids.size or (ids[-1] == SAMPLED_LAST and not np.count_nonzero(ids != SAMPLED_LAST))


def _equal(one: Int32Array, other: Int32Array) -> bool:
    """Whether two int32 arrays are equal; comparing bytes is several times cheaper than np.array_equal."""
    return one is other or one.tobytes() == other.tobytes()


def _counting(count: int) -> Int32Array:
    """[count] 0, 1, 2, ..."""
    return _COUNTING[:count] if count <= _COUNTING.size else np.arange(count, dtype=np.int32)


def _tail_positions(plan: StepPlan, ends: Int32Array) -> Int32Array:
    """[T] the last query_len positions of each row's context. ends: [R] running sum of query_lens."""
    if plan.rows.size == 1:
        context = int(plan.context_lens[0])
        return np.arange(context - int(plan.query_lens[0]), context, dtype=np.int32)
    shift = np.repeat(plan.context_lens - ends, plan.query_lens)
    return shift + np.arange(shift.size, dtype=np.int32)


def decode_result(message: worker_pb2.StepResult, plan: StepPlan, vocab_size: int = 0) -> DecodedResult:
    """The result of a plan, made to fit it.

    A sample without a token, or with one outside [0, vocab_size) (no upper bound when 0), becomes a failure
    of its row alone; failures of rows that the plan does not hold are left out. Each repair is named in
    `oddities`.
    """
    oddities: list[str] = []
    failed = _failed_rows(message, plan, oddities)
    tokens = _tokens(message, plan, oddities)
    failure_reason, failure = _failure(message)
    if failure is not None:
        tokens = np.full(plan.sample_rows.size, -1, np.int32)
    elif tokens.size and int(tokens.view(np.uint32).max()) >= (vocab_size or 1 << 31):  # below 0 is far above
        outside = (tokens < 0) | (tokens >= vocab_size if vocab_size else False)
        for row in plan.sample_rows[outside].tolist():
            if row not in failed:
                failed[row] = "INVALID_TOKEN"
                oddities.append("invalid_token")
        tokens = np.where(outside, np.int32(-1), tokens)
    if failed and failure is None:
        tokens = np.where(np.isin(plan.sample_rows, list(failed)), np.int32(-1), tokens)
    return DecodedResult(
        result=StepResult(
            plan.step_id,
            tokens,
            tuple(failed.items()),
            failure,
            _acknowledged(message, plan, oddities),
            message.forward_seconds,
            message.block_move_seconds,
            message.transfer_seconds,
        ),
        oddities=tuple(oddities),
        failure_reason=failure_reason,
        forward_seconds=message.forward_seconds,
        block_move_seconds=message.block_move_seconds,
        gap_seconds=message.gap_seconds,
    )


def without_rows(decoded: DecodedResult, plan: StepPlan, rows: Sequence[int]) -> DecodedResult:
    """The result with these rows failed: what they asked for beside tokens did not come with them."""
    failed = dict(decoded.result.failed_rows) | dict.fromkeys(rows, "MISSING_LOGPROBS")
    lost = np.isin(plan.sample_rows, list(failed))
    tokens = np.where(lost, np.int32(-1), decoded.result.token_ids)
    result = replace(decoded.result, token_ids=tokens, failed_rows=tuple(failed.items()))
    return replace(decoded, result=result, oddities=(*decoded.oddities, "missing_logprobs"))


def failed(decoded: DecodedResult, why: str) -> DecodedResult:
    """The result as that of a step that failed as a whole: the session cannot go on after it."""
    if decoded.result.failure is not None:
        return decoded
    result = replace(decoded.result, failure=f"UNSPECIFIED: {why}")
    return replace(decoded, result=result, failure_reason="UNSPECIFIED")


def _acknowledged(message: worker_pb2.StepResult, plan: StepPlan, oddities: list[str]) -> tuple[StepId, ...]:
    """The core's numbers of the steps whose transfers are done; none when one of them has not been sent."""
    if not message.acknowledged_transfers:
        return ()
    try:
        steps = arrays.decode(message.acknowledged_transfers, "acknowledged_transfers").tolist()
    except InvalidArgument:
        steps = [0]
    if min(steps) < 1 or max(steps) > message.step_id:
        oddities.append("malformed_transfers")
        return ()
    return tuple(StepId(step + plan.step_id - message.step_id) for step in steps)


def _failed_rows(message: worker_pb2.StepResult, plan: StepPlan, oddities: list[str]) -> dict[int, str]:
    failed: dict[int, str] = {}
    known = {*plan.rows.tolist(), *plan.sample_rows.tolist()} if message.failed_rows else set()
    for failure in message.failed_rows:
        if failure.row not in known:
            oddities.append("unknown_row")
        else:
            failed.setdefault(failure.row, _reason(worker_pb2.RowFailureReason, failure.reason, _ROW_REASON))
    return failed


def _tokens(message: worker_pb2.StepResult, plan: StepPlan, oddities: list[str]) -> Int32Array:
    """[S] the tokens, filled up with -1 or cut to the plan's number of samples."""
    expected = plan.sample_rows.size
    try:
        given = arrays.decode(message.token_ids, "token_ids")
    except InvalidArgument:
        oddities.append("malformed_tokens")
        given = np.empty(0, np.int32)
    if given.size == expected:
        return given
    if given.size > expected:
        oddities.append("extra_tokens")
        return given[:expected]
    if not message.HasField("failure"):
        oddities.append("missing_tokens")
    return np.concatenate([given, np.full(expected - given.size, -1, np.int32)])


def _failure(message: worker_pb2.StepResult) -> tuple[str, str | None]:
    if not message.HasField("failure"):
        return "", None
    name = _reason(worker_pb2.StepFailureReason, message.failure.reason, _STEP_REASON)
    return name, f"{name}: {message.failure.detail[:_DETAIL_LIMIT]}"


def _reason(enum: EnumTypeWrapper, value: int, prefix: str) -> str:
    """The name of an enum value without its prefix; a value of a newer peer is UNSPECIFIED."""
    return enum.Name(value if value in enum.values() else 0).removeprefix(prefix)

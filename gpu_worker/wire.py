"""Plan and result messages against plain arrays.

Owns the filling-in of what a plan leaves out and the writing of results; knows neither rows' state nor
the device. Invariant: a decoded plan is complete, so that nothing behind this module knows what the wire
omits.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpu_worker.errors import PlanError
from octavo import arrays
from octavo.errors import InvalidArgument
from octavo.worker.v1 import worker_pb2

Int32Array = npt.NDArray[np.int32]
_NONE = np.empty(0, np.int32)
_NO_PAIRS = _NONE.reshape(0, 2)
_ONE = np.int32(1)


@dataclass(frozen=True, slots=True)
class Sampling:
    """temperature 0 is greedy; top_k 0, top_p 1, min_p 0, penalties 0 and repetition_penalty 1 are off; seed
    is unsigned 64-bit. suppressed_ids hold below output position min_tokens. logprobs and prompt_logprobs:
    alternatives to report, -1 for none of it.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias_ids: tuple[int, ...] = ()
    bias_values: tuple[float, ...] = ()
    suppressed_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    logprobs: int = -1
    prompt_logprobs: int = -1
    grammar: str = ""

    @property
    def penalises(self) -> bool:
        """Whether the row's history changes its logits."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    @property
    def adjusts(self) -> bool:
        """Whether anything changes the row's logits."""
        return self.penalises or bool(self.bias_ids) or bool(self.suppressed_ids and self.min_tokens)


@dataclass(frozen=True, slots=True)
class RowSetup:
    """A row that begins to stand for a sequence; prompt_len in tokens. prompt_ids [prompt_len] and output_ids
    are there for rows that need their history.
    """

    row: int
    prompt_len: int
    sampling: Sampling
    prompt_ids: Int32Array = field(default_factory=lambda: _NONE)
    output_ids: Int32Array = field(default_factory=lambda: _NONE)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of N positions: ids and values [N, width], int32 and float32, each token itself first."""

    ids: Int32Array
    values: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Plan:
    """A step with nothing left out. R rows, T new tokens, S samples; arrays int32, see worker.proto."""

    session_id: int
    worker_epoch: int
    step_id: int
    base_step: int
    released_rows: Int32Array
    setups: tuple[RowSetup, ...]
    table_rows: Int32Array
    table_offsets: Int32Array
    table_blocks: Int32Array
    zero_blocks: Int32Array
    copy_pairs: Int32Array  # [N, 2] from, to
    rows: Int32Array  # [R]
    query_lens: Int32Array  # [R]
    context_lens: Int32Array  # [R]
    input_ids: Int32Array  # [T], -1: the row's last sample
    positions: Int32Array  # [T]
    slot_mapping: Int32Array  # [T]
    sample_positions: Int32Array  # [S]
    sample_rows: Int32Array  # [S]
    swap_out_pairs: Int32Array = field(default_factory=lambda: _NO_PAIRS)  # [N, 2] device, host
    swap_in_pairs: Int32Array = field(default_factory=lambda: _NO_PAIRS)  # [N, 2] host, device


def decode_plan(message: worker_pb2.StepPlan, base_rows: Int32Array) -> Plan:
    """The whole plan; base_rows [R] are the rows of the base step. Raises PlanError naming the field."""
    rows = _rows(message, base_rows)
    context_lens = _array(message.context_lens, "context_lens")
    _same_length("context_lens", context_lens, "rows", rows)
    query_lens, total = _query_lens(message, rows)
    sample_positions, sample_rows = _samples(message, rows, query_lens)
    given_ids = _array(message.input_ids, "input_ids")
    return Plan(
        session_id=message.session_id,
        worker_epoch=message.worker_epoch,
        step_id=message.step_id,
        base_step=message.base_step,
        released_rows=_array(message.released_rows, "released_rows"),
        setups=tuple(_setup(setup) for setup in message.row_setups),
        table_rows=_array(message.table_rows, "table_rows"),
        table_offsets=_array(message.table_offsets, "table_offsets"),
        table_blocks=_array(message.table_blocks, "table_blocks"),
        zero_blocks=_array(message.block_ops.zero_blocks, "zero_blocks"),
        copy_pairs=_pairs(message.block_ops.copy_pairs, "copy_pairs"),
        rows=rows,
        query_lens=query_lens,
        context_lens=context_lens,
        input_ids=given_ids if len(given_ids) or total > _INPUT_LIMIT else np.full(total, -1, np.int32),
        positions=_positions(message, query_lens, context_lens, total),
        slot_mapping=_array(message.slot_mapping, "slot_mapping"),
        sample_positions=sample_positions,
        sample_rows=sample_rows,
        swap_out_pairs=_pairs(message.block_ops.swap_out_pairs, "swap_out_pairs"),
        swap_in_pairs=_pairs(message.block_ops.swap_in_pairs, "swap_in_pairs"),
    )


_INPUT_LIMIT = 1 << 24
"""New tokens above which omitted arrays are not filled in: the bounds check refuses the plan anyway."""


def _array(data: bytes, name: str) -> Int32Array:
    if not data:
        return _NONE
    try:
        return arrays.decode(data, name)
    except InvalidArgument as error:
        raise PlanError(name, error.message.removeprefix(f"{name}: ")) from error


def _query_lens(message: worker_pb2.StepPlan, rows: Int32Array) -> tuple[Int32Array, int]:
    """[R] new tokens of each row, and their sum. One each where the plan leaves them out."""
    if not message.query_lens:
        return np.ones(len(rows), np.int32), len(rows)
    query_lens = _array(message.query_lens, "query_lens")
    _same_length("query_lens", query_lens, "rows", rows)
    least = int(query_lens[query_lens.argmin()]) if len(rows) else 1
    if least < 1:
        raise PlanError("query_lens", f"{least} is below 1")
    return query_lens, int(query_lens.sum(dtype=np.int64))


def _pairs(data: bytes, name: str) -> Int32Array:
    if not data:
        return _NO_PAIRS
    flat = _array(data, name)
    if len(flat) % 2:
        raise PlanError(name, f"{len(flat)} ids are not whole pairs")
    return flat.reshape(-1, 2)


def _same_length(name: str, values: Int32Array, other: str, others: Int32Array) -> None:
    if len(values) != len(others):
        raise PlanError(name, f"{len(values)} entries, {other} has {len(others)}")


def _rows(message: worker_pb2.StepPlan, base_rows: Int32Array) -> Int32Array:
    if not message.same_rows:
        return _array(message.rows, "rows")
    if message.rows:
        raise PlanError("rows", "given together with same_rows")
    if message.base_step == 0:
        raise PlanError("same_rows", "the first step of a session has no base")
    return base_rows


def _positions(
    message: worker_pb2.StepPlan, query_lens: Int32Array, context_lens: Int32Array, total: int
) -> Int32Array:
    if message.positions or total > _INPUT_LIMIT:
        return _array(message.positions, "positions")
    return implied_positions(query_lens, context_lens)


def implied_positions(query_lens: Int32Array, context_lens: Int32Array) -> Int32Array:
    """The last query_len positions of each row's context, end to end: int32 [sum(query_lens)]."""
    if len(query_lens) == 1:
        context = int(context_lens[0])
        return np.arange(context - int(query_lens[0]), context, dtype=np.int32)
    if len(query_lens) == int(query_lens.sum()):
        return context_lens - 1
    ends = np.cumsum(query_lens, dtype=np.int32)
    return np.arange(int(ends[-1]), dtype=np.int32) + np.repeat(context_lens - ends, query_lens)


def _samples(
    message: worker_pb2.StepPlan, rows: Int32Array, query_lens: Int32Array
) -> tuple[Int32Array, Int32Array]:
    given = bool(message.sample_positions or message.sample_rows)
    if message.no_samples:
        if given:
            raise PlanError("no_samples", "set together with samples")
        return _NONE, _NONE
    if not given:
        if not message.query_lens:
            return np.arange(len(rows), dtype=np.int32), rows
        return query_lens.cumsum(dtype=np.int32) - _ONE, rows
    positions = _array(message.sample_positions, "sample_positions")
    sample_rows = _array(message.sample_rows, "sample_rows")
    _same_length("sample_rows", sample_rows, "sample_positions", positions)
    return positions, sample_rows


def _setup(setup: worker_pb2.RowSetup) -> RowSetup:
    given = setup.sampling
    sampling = Sampling(
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        min_p=given.min_p,
        seed=given.seed,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        repetition_penalty=given.repetition_penalty or 1.0,
        bias_ids=_tuple(given.logit_bias_ids, "row_setups.sampling.logit_bias_ids"),
        bias_values=tuple(given.logit_bias_values),
        suppressed_ids=_tuple(given.suppressed_ids, "row_setups.sampling.suppressed_ids"),
        min_tokens=given.min_tokens,
        logprobs=given.logprobs if given.HasField("logprobs") else -1,
        prompt_logprobs=given.prompt_logprobs if given.HasField("prompt_logprobs") else -1,
        grammar=setup.grammar,
    )
    if not (setup.prompt_ids or setup.output_ids):
        return RowSetup(setup.row, setup.prompt_len, sampling)
    prompt_ids = _array(setup.prompt_ids, "row_setups.prompt_ids")
    output_ids = _array(setup.output_ids, "row_setups.output_ids")
    return RowSetup(setup.row, setup.prompt_len, sampling, prompt_ids, output_ids)


def _tuple(data: bytes, name: str) -> tuple[int, ...]:
    return tuple(_array(data, name).tolist()) if data else ()


_NON_FINITE = (
    worker_pb2.ROW_FAILURE_REASON_NON_FINITE_LOGITS,
    "the logits hold NaN or infinity, or every token is masked",
)
_BARRED = (
    worker_pb2.ROW_FAILURE_REASON_GRAMMAR_FAILED,
    "the grammar takes more work in a step than is allowed, cannot be compiled, or does not fit the output",
)


def encode_result(
    plan: worker_pb2.StepPlan,
    token_ids: Int32Array,
    failed_rows: Sequence[int],
    seconds: tuple[float, float, float],
    logprobs: TokenLogprobs | None = None,
    prompt_logprobs: Sequence[tuple[int, int, TokenLogprobs]] = (),
    acknowledged: Sequence[int] = (),
    transfer_seconds: float = 0.0,
    barred_rows: Collection[int] = (),
) -> worker_pb2.RunResponse:
    """The answer to a plan: token_ids [S], rows that failed, (forward, block move, gap) seconds;
    log-probabilities of the samples that ask, and (row, first position, values) of prompts; steps whose
    transfers out are done; of the failed rows, those whose grammar allows no token.
    """
    failures = [
        worker_pb2.RowFailure(row=row, reason=reason, detail=detail)
        for row in failed_rows
        for reason, detail in [_BARRED if row in barred_rows else _NON_FINITE]
    ]
    result = worker_pb2.StepResult(
        session_id=plan.session_id,
        worker_epoch=plan.worker_epoch,
        step_id=plan.step_id,
        token_ids=arrays.encode(token_ids),
        failed_rows=failures,
        forward_seconds=seconds[0],
        block_move_seconds=seconds[1],
        gap_seconds=seconds[2],
    )
    if acknowledged:
        result.acknowledged_transfers = arrays.encode(np.array(acknowledged, np.int32))
        result.transfer_seconds = transfer_seconds
    if logprobs is not None:
        _fill(result.logprobs, logprobs)
    for row, first, values in prompt_logprobs:
        _fill(result.prompt_logprobs.add(row=row, first_position=first).logprobs, values)
    return worker_pb2.RunResponse(result=result)


def _fill(message: worker_pb2.Logprobs, values: TokenLogprobs) -> None:
    message.width = values.ids.shape[1]
    message.token_ids = arrays.encode(values.ids)
    message.values = arrays.encode(values.values.view(np.int32))


def encode_failure(
    plan: worker_pb2.StepPlan, reason: worker_pb2.StepFailureReason, detail: str
) -> worker_pb2.RunResponse:
    """The answer to a plan that failed as a whole; it names the plan's own session, epoch and step."""
    result = worker_pb2.StepResult(
        session_id=plan.session_id,
        worker_epoch=plan.worker_epoch,
        step_id=plan.step_id,
        failure=worker_pb2.StepFailure(reason=reason, detail=detail),
    )
    return worker_pb2.RunResponse(result=result)

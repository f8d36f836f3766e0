"""The fake worker's own reading of a plan message, written from the schema's comments alone.

Owns the filling-in of omitted fields; knows no pool. Invariant: it shares no code with either service, so
that an error made in one of their `wire` modules cannot hide here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.worker.v1 import worker_pb2
from tests.fakes.plan_like import Int32Array
from tests.fakes.simulated_kv import ProtocolViolation


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int


@dataclass(frozen=True, slots=True)
class Setup:
    row: int
    prompt_len: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class DecodedPlan:
    """A plan with nothing left out; a PlanLike. Arrays are int32, shaped as in the core's StepPlan."""

    session_id: int
    worker_epoch: int
    step_id: int
    base_step: int
    released_rows: Int32Array
    setups: Sequence[Setup]
    table_rows: Int32Array
    table_offsets: Int32Array
    table_blocks: Int32Array
    zero_blocks: Int32Array
    copy_pairs: Int32Array
    swap_out_pairs: Int32Array
    swap_in_pairs: Int32Array
    rows: Int32Array
    query_lens: Int32Array
    context_lens: Int32Array
    input_ids: Int32Array
    positions: Int32Array
    slot_mapping: Int32Array
    sample_positions: Int32Array
    sample_rows: Int32Array


def decode_plan(message: worker_pb2.StepPlan, base_rows: Int32Array) -> DecodedPlan:
    """The whole plan; base_rows [R] are the rows of the base step. Raises ProtocolViolation."""
    rows = _rows(message, base_rows)
    context_lens = _array(message.context_lens, "context_lens")
    query_lens = (
        _array(message.query_lens, "query_lens") if message.query_lens else np.ones(len(rows), np.int32)
    )
    if not len(rows) == len(context_lens) == len(query_lens):
        raise ProtocolViolation("rows", "rows, query_lens and context_lens differ in length")
    total = int(query_lens.sum())
    sample_positions, sample_rows = _samples(message, rows, query_lens)
    return DecodedPlan(
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
        copy_pairs=_array(message.block_ops.copy_pairs, "copy_pairs").reshape(-1, 2),
        swap_out_pairs=_array(message.block_ops.swap_out_pairs, "swap_out_pairs").reshape(-1, 2),
        swap_in_pairs=_array(message.block_ops.swap_in_pairs, "swap_in_pairs").reshape(-1, 2),
        rows=rows,
        query_lens=query_lens,
        context_lens=context_lens,
        input_ids=_array(message.input_ids, "input_ids")
        if message.input_ids
        else np.full(total, -1, np.int32),
        positions=_positions(message, query_lens, context_lens),
        slot_mapping=_array(message.slot_mapping, "slot_mapping"),
        sample_positions=sample_positions,
        sample_rows=sample_rows,
    )


def _rows(message: worker_pb2.StepPlan, base_rows: Int32Array) -> Int32Array:
    if not message.same_rows:
        return _array(message.rows, "rows")
    if message.rows:
        raise ProtocolViolation("rows", "given together with same_rows")
    if message.base_step == 0:
        raise ProtocolViolation("same_rows", "the first step of a session has no base")
    return base_rows


def _positions(message: worker_pb2.StepPlan, query_lens: Int32Array, context_lens: Int32Array) -> Int32Array:
    if message.positions:
        return _array(message.positions, "positions")
    spans = [np.arange(c - q, c, dtype=np.int32) for q, c in zip(query_lens, context_lens, strict=True)]
    return np.concatenate([np.empty(0, np.int32), *spans])


def _samples(
    message: worker_pb2.StepPlan, rows: Int32Array, query_lens: Int32Array
) -> tuple[Int32Array, Int32Array]:
    given = bool(message.sample_positions or message.sample_rows)
    if message.no_samples:
        if given:
            raise ProtocolViolation("no_samples", "set together with samples")
        return np.empty(0, np.int32), np.empty(0, np.int32)
    if given:
        return _array(message.sample_positions, "sample_positions"), _array(
            message.sample_rows, "sample_rows"
        )
    return (np.cumsum(query_lens) - 1).astype(np.int32), rows


def _setup(setup: worker_pb2.RowSetup) -> Setup:
    sampling = setup.sampling
    return Setup(
        row=setup.row,
        prompt_len=setup.prompt_len,
        sampling=Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
        ),
    )


def _array(data: bytes, name: str) -> Int32Array:
    if len(data) % 4:
        raise ProtocolViolation(name, f"{len(data)} bytes is not a whole number of int32")
    return np.frombuffer(data, "<i4").astype(np.int32)

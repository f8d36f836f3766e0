"""Writes the arrays of a plan from what was decided; decides nothing.

Owns the draft of the plan being built and the constant arrays that plans share; does not know blocks' states
or fairness. Invariant: a built plan's arrays are never written again.
"""

from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from scheduler_svc.core.plan import (
    SAMPLED_LAST,
    Int32Array,
    Int64Array,
    RowSetup,
    StepId,
    StepPlan,
    no_ids,
)
from scheduler_svc.core.rows import Rows
from scheduler_svc.core.sequence import Sequence


@dataclass(slots=True, eq=False)
class Chunk:
    """Tokens [start, end) of a context whose ids are known, in the plan being built or in flight.

    published: blocks made findable by this step. pending: hit blocks that a step in flight was still to
    write. forks: the stays (row, tenure) of the branches that begin where it ends. swapped_in: blocks that
    this step moves back for it.
    """

    seq: Sequence
    row: int
    tenure: int
    start: int
    end: int
    pending: Int32Array
    published: list[Int32Array] = field(default_factory=list)
    forks: list[tuple[int, int]] = field(default_factory=list)
    swapped_in: int = 0

    @property
    def completes(self) -> bool:
        """Whether the context ends with it, so that it samples."""
        return self.end == len(self.seq.tokens)

    @property
    def samplers(self) -> list[int]:
        """The rows that sample from its last token."""
        return [self.row, *(row for row, _ in self.forks)] if self.completes else []


class BatchBuilder:
    """Collects one plan at a time over `rows`; `build` empties it for the next."""

    def __init__(self, rows: Rows, max_tokens: int) -> None:
        self._rows = rows
        self._ones = _constant(np.ones(rows.max_rows, np.int32))
        self._sampled_last = _constant(np.full(rows.max_rows, SAMPLED_LAST, np.int32))
        self._count = _constant(np.arange(max(max_tokens, rows.max_rows), dtype=np.int32))
        self._no_pairs = _constant(np.empty((0, 2), np.int32))
        self._one = np.int32(1)
        self._none = _constant(no_ids())
        self._decodes: Int64Array = np.empty(0, np.int64)
        self._decode_rows = self._none
        self._released: list[int] = []
        self._setups: list[RowSetup] = []
        self._copies: list[tuple[int, int]] = []
        self._entries: list[tuple[Int32Array, Int32Array, Int32Array]] = []
        self._out: list[Int32Array] = []
        self._in: list[Int32Array] = []

    def release_row(self, row: int) -> None:
        self._released.append(row)

    def set_up_row(self, seq: Sequence) -> None:
        sampling = seq.sampling
        token_ids = seq.tokens if sampling.needs_history else self._none
        self._setups.append(RowSetup(seq.row, seq.seq_id, seq.prompt_len, sampling, token_ids))

    def add_entries(self, row: int, offset: int, blocks: Int32Array) -> None:
        """Table entries [offset, offset + n) of one row."""
        n = len(blocks)
        offsets = np.arange(offset, offset + n, dtype=np.int32)
        self._entries.append((np.full(n, row, np.int32), offsets, blocks))

    def add_entry_each(self, rows: Int64Array, offsets: Int32Array, blocks: Int32Array) -> None:
        """One table entry for each of n rows."""
        self._entries.append((rows.astype(np.int32), offsets, blocks))

    def add_copy(self, source: int, target: int) -> None:
        """The target gets the source's content before the step's forward pass."""
        self._copies.append((source, target))

    def swap_out(self, device: Int32Array, host: Int32Array) -> None:
        """Device block i is copied to host block i."""
        self._out.append(np.stack((device, host), axis=1))

    def swap_in(self, host: Int32Array, device: Int32Array) -> None:
        """Host block i is copied to device block i."""
        self._in.append(np.stack((host, device), axis=1))

    def build(
        self, step_id: StepId, decodes: Int64Array, chunks: list[Chunk], zero_blocks: Int32Array
    ) -> StepPlan:
        """The plan: decode rows of one token each, then the chunks. Reads decode rows as they were before."""
        if decodes is not self._decodes:
            self._decodes, self._decode_rows = decodes, _constant(decodes.astype(np.int32))
        count, rows = len(decodes), self._decode_rows
        query_lens, input_ids = self._ones[:count], self._sampled_last[:count]
        positions, slots = self._rows.scheduled[decodes], self._rows.next_slot[decodes]
        context_lens = positions + self._one
        sample_positions, sample_rows = self._count[:count], rows
        if chunks:
            plain = (rows, query_lens, context_lens, input_ids, positions, slots)
            parts = [*([plain] if count else []), *map(self._chunk_arrays, chunks)]
            joined = map(np.concatenate, zip(*parts, strict=True)) if len(parts) > 1 else parts[0]
            rows, query_lens, context_lens, input_ids, positions, slots = joined
            samplers = [chunk.samplers for chunk in chunks]
            samples = np.array([1] * count + [len(of_chunk) for of_chunk in samplers])
            sample_positions = (np.cumsum(query_lens, dtype=np.int32) - self._one).repeat(samples)
            sample_rows = np.concatenate((rows[:count], np.array([*chain(*samplers)], np.int32)))
        table_rows, table_offsets, table_blocks = self._take_entries()
        released = np.array(self._released, np.int32) if self._released else self._none
        setups = tuple(self._setups)
        if released is not self._none or setups:
            self._released, self._setups = [], []
        return StepPlan(
            step_id, released, setups, table_rows, table_offsets, table_blocks, zero_blocks,
            self._take_copies(), rows, query_lens, context_lens, input_ids, positions, slots,
            sample_positions, sample_rows, self._taken(self._out), self._taken(self._in),
        )  # fmt: skip

    def _taken(self, pairs: list[Int32Array]) -> Int32Array:
        if not pairs:
            return self._no_pairs
        joined = np.concatenate(pairs)
        pairs.clear()
        return joined

    def _chunk_arrays(self, chunk: Chunk) -> tuple[Int32Array, ...]:
        """rows [1], query_lens [1], context_lens [1], input_ids [n], positions [n], slot_mapping [n]."""
        positions = np.arange(chunk.start, chunk.end, dtype=np.int32)
        ids = self._rows.history[chunk.row, chunk.start : chunk.end].copy()
        one = [np.array([value], np.int32) for value in (chunk.row, chunk.end - chunk.start, chunk.end)]
        return (*one, ids, positions, self._rows.slots_between(chunk.row, chunk.start, chunk.end))

    def _take_copies(self) -> Int32Array:
        if not self._copies:
            return self._no_pairs
        pairs, self._copies = np.array(self._copies, np.int32), []
        return pairs

    def _take_entries(self) -> tuple[Int32Array, Int32Array, Int32Array]:
        entries, self._entries = self._entries, []
        if not entries:
            return self._none, self._none, self._none
        if len(entries) == 1:
            return entries[0]
        rows, offsets, blocks = (np.concatenate(part) for part in zip(*entries, strict=True))
        return rows, offsets, blocks


def _constant(values: Int32Array) -> Int32Array:
    values.flags.writeable = False
    return values

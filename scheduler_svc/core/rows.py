"""The running sequences as a structure of arrays: one row each, so that a step costs a few array operations.

Owns which sequence a row stands for, its tokens, its block table and its counters; does not know the block
pool. Invariant: a row's arrays mean something only while `sequence[row]` is set; `tenure` changes with every
set-up and release, so that (row, tenure) names a sequence's stay for as long as steps of it are in flight.
"""

import heapq

import numpy as np

from scheduler_svc.core.block_hash import UInt64Array
from scheduler_svc.core.plan import Int32Array, Int64Array
from scheduler_svc.core.sequence import NO_ROW, Sequence

STOP_COLUMNS = 8
"""Stop ids of a row that are checked in one array operation; a row with more of them is checked by itself."""

_FIRST_COLUMNS = 256
_NO_STOP_ID = -2


class Rows:
    """max_rows rows. Counters are in tokens of the whole context, prompt counted.

    known: tokens whose ids are known. scheduled: tokens computed or in flight. target: tokens that may be
    scheduled (equal to `scheduled` while a prefill goes on or the last sample is in flight). last: tokens
    that may be scheduled at most; the sequence ends by length with one more. min_len: up to so many tokens a
    stop id does not end it. prefix_len: tokens known at admission: the blocks within them are published when
    they are scheduled, later ones when their ids are known.
    """

    def __init__(self, max_rows: int, block_size: int) -> None:
        self.max_rows = max_rows
        self.block_size = block_size
        self.sequence: list[Sequence | None] = [None] * max_rows
        self.seq_id: Int64Array = np.zeros(max_rows, np.int64)
        self.tenure: Int64Array = np.zeros(max_rows, np.int64)
        self.known: Int32Array = np.zeros(max_rows, np.int32)
        self.scheduled: Int32Array = np.zeros(max_rows, np.int32)
        self.target: Int32Array = np.zeros(max_rows, np.int32)
        self.last: Int32Array = np.zeros(max_rows, np.int32)
        self.min_len: Int32Array = np.zeros(max_rows, np.int32)
        self.prompt_len: Int32Array = np.zeros(max_rows, np.int32)
        self.prefix_len: Int32Array = np.zeros(max_rows, np.int32)
        self.num_blocks: Int32Array = np.zeros(max_rows, np.int32)
        self.stop_ids: Int32Array = np.full((max_rows, STOP_COLUMNS), _NO_STOP_ID, np.int32)
        self.caches = np.zeros(max_rows, np.bool_)  # its blocks are published
        self.tail_uid: Int64Array = np.zeros(max_rows, np.int64)  # of the last published block, or the root
        self.tail_key: UInt64Array = np.zeros((max_rows, 2), np.uint64)
        self.history: Int32Array = np.zeros((max_rows, _FIRST_COLUMNS), np.int32)
        self.table: Int32Array = np.zeros((max_rows, max(1, _FIRST_COLUMNS // block_size)), np.int32)
        self.many_stop_ids: set[int] = set()
        self.prefilling: dict[int, Sequence] = {}  # rows whose context at admission is not all scheduled
        self.used = 0  # all set-up rows are below it
        self._free = list(range(max_rows))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def count(self) -> int:
        return self.max_rows - len(self._free)

    def running(self) -> list[Sequence]:
        """The sequences that hold a row, by row."""
        return [seq for seq in self.sequence[: self.used] if seq is not None]

    def in_use(self) -> Int64Array:
        """[count] the rows that are set up, rising."""
        return np.array([seq.row for seq in self.running()], np.int64)

    def decodes(self) -> Int64Array:
        """[k] rows whose newest token is sampled or in flight and not yet scheduled, rising."""
        return np.flatnonzero(self.target[: self.used] > self.scheduled[: self.used])

    def set_up(self, seq: Sequence, cached: int, final: int) -> int:
        """Gives the sequence the lowest free row, with its first `cached` tokens already computed."""
        row = heapq.heappop(self._free)
        self.used = max(self.used, row + 1)
        self.sequence[row], seq.row = seq, row
        self.seq_id[row] = seq.seq_id
        self.tenure[row] += 1
        length = len(seq.tokens)
        self._reserve_history(min(length + 1, final))
        self.history[row, :length] = seq.tokens
        self.known[row] = self.prefix_len[row] = length
        self.scheduled[row] = self.target[row] = cached
        self.prompt_len[row], self.last[row] = seq.prompt_len, final - 1
        self.min_len[row] = seq.prompt_len + seq.request.min_tokens
        self.num_blocks[row] = 0
        self._set_stop_ids(row, seq.request.stop_token_ids)
        self.prefilling[row] = seq
        return row

    def release(self, row: int) -> None:
        """The row stands for nothing any more."""
        seq = self.sequence[row]
        assert seq is not None
        seq.row = NO_ROW
        self.sequence[row] = None
        self.tenure[row] += 1
        self.scheduled[row] = self.target[row] = 0
        self.prefilling.pop(row, None)
        self.many_stop_ids.discard(row)
        heapq.heappush(self._free, row)
        while self.used and self.sequence[self.used - 1] is None:
            self.used -= 1

    def tokens_of(self, row: int) -> Int32Array:
        """[known] the token ids of the row's context."""
        return self.history[row, : self.known[row]].copy()

    def blocks_of(self, row: int) -> Int32Array:
        """[num_blocks] the row's block table."""
        return self.table[row, : self.num_blocks[row]]

    def append_blocks(self, row: int, blocks: Int32Array) -> None:
        held = int(self.num_blocks[row])
        self._reserve_table(held + len(blocks))
        self.table[row, held : held + len(blocks)] = blocks
        self.num_blocks[row] = held + len(blocks)

    def append_block_each(self, rows: Int64Array, blocks: Int32Array) -> Int32Array:
        """One more block for each of these rows; returns its offset in the row's table [k]."""
        offsets = self.num_blocks[rows]
        self._reserve_table(int(offsets.max()) + 1)
        self.table[rows, offsets] = blocks
        self.num_blocks[rows] = offsets + 1
        return offsets

    def append_tokens(self, rows: Int64Array, tokens: Int32Array) -> Int32Array:
        """One more known token for each of these rows (no row twice); returns the new lengths [k]."""
        at = self.known[rows]
        self._reserve_history(int(at.max(initial=0)) + 1)
        self.history[rows, at] = tokens
        lengths = at + np.int32(1)
        self.known[rows] = lengths
        return lengths

    def _set_stop_ids(self, row: int, stop_ids: frozenset[int]) -> None:
        self.stop_ids[row] = _NO_STOP_ID
        if len(stop_ids) <= STOP_COLUMNS:
            self.stop_ids[row, : len(stop_ids)] = sorted(stop_ids)
        else:
            self.many_stop_ids.add(row)

    def _reserve_history(self, columns: int) -> None:
        if columns > self.history.shape[1]:
            self.history = _widened(self.history, columns)

    def _reserve_table(self, columns: int) -> None:
        if columns > self.table.shape[1]:
            self.table = _widened(self.table, columns)


def _widened(old: Int32Array, columns: int) -> Int32Array:
    """The same rows with at least twice the columns, so that widening costs O(1) a column in the long run."""
    wide = np.zeros((old.shape[0], max(columns, 2 * old.shape[1])), np.int32)
    wide[:, : old.shape[1]] = old
    return wide

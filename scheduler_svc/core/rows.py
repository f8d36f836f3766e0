"""The running sequences as a structure of arrays: one row each, so that a step costs a few array operations.

Owns which sequence a row stands for, its tokens, its block table and its counters; does not know the block
pool. Invariant: a row's arrays mean something only while `sequence[row]` is set; `tenure` changes with every
set-up and release, so that (row, tenure) names a sequence's stay for as long as steps of it are in flight.
"""

import heapq

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.block_hash import UInt64Array
from scheduler_svc.core.plan import Int32Array, Int64Array
from scheduler_svc.core.sequence import NO_ROW, Sequence

_FIRST_COLUMNS = 256
_STOP_FILTER = 1 << 14  # a power of two
_ONE = np.int32(1)
_NOBODY: Int64Array = np.empty(0, np.int64)


class Rows:
    """max_rows rows. Counters are in tokens of the whole context, prompt counted.

    known: tokens whose ids are known. scheduled: tokens computed or in flight. left: decode steps that may
    still be scheduled, 0 while the prefill goes on. last: tokens that may ever be scheduled; the sequence
    ends by length with one more. min_len: up to so many tokens a stop id does not end it. prefix_len: tokens
    known at admission: blocks within them are published when they are scheduled, later ones when their ids
    are known. next_slot, room: where the next token goes, and how many fit from there to the end of the last
    block. forked: whether that block came from a fork, so that other tables may name it.
    """

    def __init__(self, max_rows: int, block_size: int) -> None:
        self.max_rows = max_rows
        self.block_size = block_size
        self.sequence: list[Sequence | None] = [None] * max_rows
        self.seq_id: Int64Array = np.zeros(max_rows, np.int64)
        self.tenure: Int64Array = np.zeros(max_rows, np.int64)
        self.known: Int32Array = np.zeros(max_rows, np.int32)
        self.scheduled: Int32Array = np.zeros(max_rows, np.int32)
        self.left: Int32Array = np.zeros(max_rows, np.int32)
        self.last: Int32Array = np.zeros(max_rows, np.int32)
        self.min_len: Int32Array = np.zeros(max_rows, np.int32)
        self.prompt_len: Int32Array = np.zeros(max_rows, np.int32)
        self.prefix_len: Int32Array = np.zeros(max_rows, np.int32)
        self.num_blocks: Int32Array = np.zeros(max_rows, np.int32)
        self.next_slot: Int32Array = np.zeros(max_rows, np.int32)
        self.room: Int32Array = np.zeros(max_rows, np.int32)
        self.forked: npt.NDArray[np.bool_] = np.zeros(max_rows, np.bool_)
        self.num_forked = 0
        self.caches: npt.NDArray[np.bool_] = np.zeros(max_rows, np.bool_)  # its blocks are published
        self.tail_uid: Int64Array = np.zeros(max_rows, np.int64)  # of the last published block, or the root
        self.tail_key: UInt64Array = np.zeros((max_rows, 2), np.uint64)
        self.history: Int32Array = np.zeros((max_rows, _FIRST_COLUMNS), np.int32)
        self.table: Int32Array = np.zeros((max_rows, max(1, _FIRST_COLUMNS // block_size)), np.int32)
        self._offsets: Int32Array = np.arange(block_size, dtype=np.int32)
        self._state = (
            self.known, self.scheduled, self.left, self.last, self.min_len, self.prompt_len, self.prefix_len,
            self.num_blocks, self.next_slot, self.room, self.caches, self.tail_uid, self.tail_key,
        )  # fmt: skip
        self.prefilling: dict[int, Sequence] = {}  # rows whose context at admission is not all scheduled
        self.used = 0  # all set-up rows are below it
        self.num_releases = 0
        self.num_arrivals = 0  # of rows among the decodes
        self._seen_arrivals = 0
        self._decodes: Int64Array = np.empty(0, np.int64)
        self._free = list(range(max_rows))
        self._longest = 0  # no row knows more tokens
        self._widest = 0  # no row has more blocks
        self._stop_filter: Int32Array = np.zeros(_STOP_FILTER, np.int32)

    @property
    def num_free(self) -> int:
        """Rows that nobody holds and no branch of a prompt under way will need."""
        return len(self._free) - sum(len(seq.followers) for seq in self.prefilling.values())

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
        """[k] rows whose newest token is sampled or in flight and is to be scheduled, rising.

        The same array as long as they are the same rows: while none arrives, as many rows are the same ones.
        """
        left = self.left[: self.used]
        if self._seen_arrivals != self.num_arrivals or np.count_nonzero(left) != len(self._decodes):
            self._seen_arrivals = self.num_arrivals
            self._decodes = left.nonzero()[0]
        return self._decodes

    def set_up(self, seq: Sequence, cached: int, final: int) -> int:
        """Gives the sequence the lowest free row, with its first `cached` tokens already computed."""
        row = self._occupy(seq)
        length = len(seq.tokens)
        self._longest = max(self._longest, length)
        self._widen_history()
        self.history[row, :length] = seq.tokens
        self.known[row] = self.prefix_len[row] = length
        self.scheduled[row], self.left[row] = cached, 0
        self.prompt_len[row], self.last[row] = seq.prompt_len, final - 1
        self.min_len[row] = seq.prompt_len + seq.request.min_tokens
        self.num_blocks[row] = self.room[row] = 0
        self.prefilling[row] = seq
        return row

    def fork(self, parent: int, seq: Sequence) -> int:
        """Gives the sequence the lowest free row, a copy of the parent's, table and all; returns it."""
        row = self._occupy(seq)
        for column in self._state:
            column[row] = column[parent]
        known, held = int(self.known[row]), int(self.num_blocks[row])
        self.history[row, :known] = self.history[parent, :known]
        self.table[row, :held] = self.table[parent, :held]
        for shared in (parent, row):
            self.mark_forked(shared, bool(self.room[row]))
        self.num_arrivals += 1
        return row

    def mark_forked(self, row: int, forked: bool) -> None:
        """Notes whether the row's last block came from a fork."""
        self.num_forked += int(forked) - int(self.forked[row])
        self.forked[row] = forked

    def _occupy(self, seq: Sequence) -> int:
        """A stay of the sequence in the lowest free row begins."""
        row = heapq.heappop(self._free)
        self.used = max(self.used, row + 1)
        self.sequence[row], seq.row = seq, row
        self.seq_id[row] = seq.seq_id
        self.tenure[row] += 1
        for token in seq.request.stop_token_ids:
            self._stop_filter[token % _STOP_FILTER] += 1
        return row

    def release(self, row: int) -> None:
        """The row stands for nothing any more."""
        seq = self.sequence[row]
        assert seq is not None
        seq.row = NO_ROW
        self.sequence[row] = None
        self.tenure[row] += 1
        self.num_releases += 1
        self.scheduled[row] = self.left[row] = 0
        self.mark_forked(row, False)
        for token in seq.request.stop_token_ids:
            self._stop_filter[token % _STOP_FILTER] -= 1
        self.prefilling.pop(row, None)
        heapq.heappush(self._free, row)
        while self.used and self.sequence[self.used - 1] is None:
            self.used -= 1

    def tokens_of(self, row: int) -> Int32Array:
        """[known] the token ids of the row's context."""
        return self.history[row, : self.known[row]].copy()

    def blocks_of(self, row: int) -> Int32Array:
        """[num_blocks] the row's block table."""
        return self.table[row, : self.num_blocks[row]]

    def slots_between(self, row: int, start: int, end: int) -> Int32Array:
        """[end - start] the slots of these positions of the row, of its blocks from the first to the last."""
        size = self.block_size
        first, last = start // size, -(-end // size)
        slots: Int32Array = self.table[row, first:last, None] * np.int32(size) + self._offsets
        return slots.reshape(-1)[start - first * size : end - first * size]

    def without_room(self, rows: Int64Array) -> Int64Array:
        """Those of the rows whose last block is full."""
        room = self.room[rows]
        return _NOBODY if np.count_nonzero(room) == len(room) else rows[room == 0]

    def append_blocks(self, row: int, blocks: Int32Array) -> None:
        held = int(self.num_blocks[row])
        self._widest = max(self._widest, held + len(blocks))
        self._widen_table()
        self.table[row, held : held + len(blocks)] = blocks
        self.num_blocks[row] = held + len(blocks)

    def replace_last_block(self, row: int, block: int) -> int:
        """Another block takes the last one's place, which is not full; returns its offset in the table."""
        offset = int(self.num_blocks[row]) - 1
        self.table[row, offset] = block
        self.next_slot[row] = (block + 1) * self.block_size - self.room[row]
        return offset

    def append_block_each(self, rows: Int64Array, blocks: Int32Array) -> Int32Array:
        """One more block for each of these rows, whose last is full; returns its offset in the row's table
        [k].
        """
        offsets = self.num_blocks[rows]
        self._widest += 1
        if self._widest > self.table.shape[1]:
            self._widest = int(self.num_blocks.max()) + 1
            self._widen_table()
        self.table[rows, offsets] = blocks
        self.num_blocks[rows] = offsets + 1
        self.next_slot[rows] = blocks * self.block_size
        self.room[rows] = self.block_size
        return offsets

    def advance_each(self, rows: Int64Array, contexts: Int32Array, slots: Int32Array) -> Int64Array:
        """One more token of each of these rows is scheduled, in `slots`; contexts: [k] tokens with it.

        Returns the indexes whose last block it filled.
        """
        self.scheduled[rows] = contexts
        self.next_slot[rows] = slots + _ONE
        self.left[rows] -= _ONE
        room = self.room[rows] - _ONE
        self.room[rows] = room
        if np.count_nonzero(room) == len(room):
            return _NOBODY
        full: Int64Array = (room == 0).nonzero()[0]
        return full

    def advance(self, row: int, end: int) -> None:
        """Tokens up to `end` of a prefill are scheduled; the table covers them."""
        self.scheduled[row] = end
        if end == self.known[row]:
            del self.prefilling[row]
            self.left[row] = self.last[row] - end
            self.num_arrivals += 1
        self.room[row] = self.num_blocks[row] * self.block_size - end
        if self.room[row]:
            logical, offset = divmod(end, self.block_size)
            self.next_slot[row] = self.table[row, logical] * self.block_size + offset

    def append_tokens(self, rows: Int64Array, tokens: Int32Array) -> Int32Array:
        """One more known token for each of these rows (no row twice); returns the new lengths [k]."""
        at = self.known[rows]
        self._longest += 1
        if self._longest > self.history.shape[1]:
            self._longest = int(self.known.max()) + 1
            self._widen_history()
        self.history[rows, at] = tokens
        at += 1
        self.known[rows] = at
        return at

    def stopped(self, rows: Int64Array, tokens: Int32Array, lengths: Int32Array) -> list[int]:
        """Indexes i where tokens[i] is a stop id of rows[i] that ends a context of lengths[i] tokens.

        A small table of what any row stops at leaves only the suspects to be looked up one by one.
        """
        suspects = self._stop_filter[tokens & np.int32(_STOP_FILTER - 1)].nonzero()[0]
        return [i for i in suspects.tolist() if self._stops(int(rows[i]), int(tokens[i]), int(lengths[i]))]

    def _stops(self, row: int, token: int, length: int) -> bool:
        seq = self.sequence[row]
        return seq is not None and token in seq.request.stop_token_ids and length > int(self.min_len[row])

    def _widen_history(self) -> None:
        if self._longest > self.history.shape[1]:
            self.history = self._widened(self.history, self.known, self._longest)

    def _widen_table(self) -> None:
        if self._widest > self.table.shape[1]:
            self.table = self._widened(self.table, self.num_blocks, self._widest)

    def _widened(self, old: Int32Array, lengths: Int32Array, columns: int) -> Int32Array:
        """The same rows with at least twice the columns, so that widening costs O(1) a column in the long
        run.

        Only what is in use is copied: memory that no row has needed stays untouched, and so costs nothing.
        """
        wide = np.zeros((old.shape[0], max(columns, 2 * old.shape[1])), np.int32)
        for row in self.in_use().tolist():
            wide[row, : lengths[row]] = old[row, : lengths[row]]
        return wide

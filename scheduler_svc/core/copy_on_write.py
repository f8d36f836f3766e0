"""Shared blocks that somebody is to write: the fork of a row, and the copies before a write.

Owns the rule that a block is written by its only holder; does not know why rows fork or how prefixes are
found. Invariant: the source of a copy is handed to nobody until the plan is built, for its step reads before
it writes.

After a fork all rows name the same last block. Whoever writes to it while others hold it gets a copy, by a
pair in the plan that runs before the forward pass; the last owner writes in place. A block that is exactly
full is never copied.
"""

from collections.abc import Callable

import numpy as np

from scheduler_svc.core.batch_builder import BatchBuilder
from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.plan import Int32Array, Int64Array
from scheduler_svc.core.rows import Rows
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.stats import Counters


class CopyOnWrite:
    """take: hands out that many blocks, which the pool must have."""

    def __init__(
        self, rows: Rows, pool: BlockPool, counters: Counters, take: Callable[[int], Int32Array]
    ) -> None:
        self._rows = rows
        self._pool = pool
        self._counters = counters
        self._take = take
        self._held: list[Int32Array] = []

    def fork(self, parent: int, seq: Sequence, batch: BatchBuilder) -> int:
        """Gives the sequence a row that shares every block of the parent's; returns the row."""
        rows, blocks = self._rows, self._rows.blocks_of(parent)
        row = rows.fork(parent, seq)
        self._pool.share(blocks)
        batch.set_up_row(seq)
        batch.add_entries(row, 0, blocks.copy())
        seq.blocks_saved = len(blocks) - int(rows.forked[row])
        self._counters.forks += 1
        self._counters.blocks_saved_by_forks += seq.blocks_saved
        return row

    def needed_before(self, rows: Int64Array) -> int:
        """How many blocks must be copied before each of these rows can write its next token."""
        if not self._rows.num_forked:
            return 0
        return len(self._to_copy(rows))

    def before_writes(self, rows: Int64Array, batch: BatchBuilder) -> None:
        """Copies the last block of those of these rows that write to it while others hold it too."""
        if not self._rows.num_forked:
            return
        copying = self._to_copy(rows)
        for row, block in zip(copying, self._take(len(copying)).tolist(), strict=True):
            source = int(self._rows.blocks_of(row)[-1])
            offset = self._rows.replace_last_block(row, block)
            self._pool.release(np.array([source], np.int32))
            batch.add_entries(row, offset, np.array([block], np.int32))
            batch.add_copy(source, block)
        self._counters.copies_on_write += len(copying)
        for row in rows[self._rows.forked[rows]].tolist():
            self._rows.mark_forked(row, False)

    def _to_copy(self, rows: Int64Array) -> list[int]:
        """Of these writers of forked blocks all but each block's last owner, who writes in place."""
        copying: list[int] = []
        owners: dict[int, int] = {}
        for row in rows[self._rows.forked[rows]].tolist():
            block = int(self._rows.blocks_of(row)[-1])
            owners.setdefault(block, int(self._pool.ref_count[block]))
            if owners[block] > 1:
                owners[block] -= 1
                copying.append(row)
        return copying

    def begin(self, row: int, source: int, batch: BatchBuilder) -> None:
        """The row's table goes on with a copy of a cached block."""
        held = int(self._rows.num_blocks[row])
        self._hold(np.array([source], np.int32))
        block = self._take(1)
        self._rows.append_blocks(row, block)
        batch.add_entries(row, held, block)
        batch.add_copy(source, int(block[0]))

    def _hold(self, blocks: Int32Array) -> None:
        """Nobody gets these blocks while the plan is built: it reads them before it writes."""
        self._pool.share(blocks)
        self._held.append(blocks)

    def let_go(self) -> None:
        """The plan is built."""
        for blocks in self._held:
            self._pool.release(blocks)
        self._held.clear()

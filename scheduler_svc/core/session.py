"""All that lives only as long as a session with a worker: rows, blocks, steps in flight.

Owns their common life; does not know the queue or the notices. Invariant: dropping the object voids all
residency at once, for nothing outside it names a block or a row but `Sequence.row`.
"""

from dataclasses import dataclass

from scheduler_svc.core.batch_builder import BatchBuilder
from scheduler_svc.core.block_hash import HashFunction
from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.in_flight import InFlight
from scheduler_svc.core.plan import Capacity, Int32Array, SchedulerConfig
from scheduler_svc.core.prefill import row_limit
from scheduler_svc.core.rows import Rows
from scheduler_svc.core.stats import Counters


@dataclass(slots=True)
class Session:
    """budget: tokens of a step. applied: the last step whose answer was taken in."""

    capacity: Capacity
    budget: int
    rows: Rows
    manager: BlockManager
    batch: BatchBuilder
    in_flight: InFlight
    applied: int

    def release(self, row: int) -> Int32Array:
        """Ends a row's stay; returns those of its blocks that are now without content."""
        self.batch.release_row(row)
        return self.manager.release(row)


def open_session(
    capacity: Capacity, config: SchedulerConfig, counters: Counters, hash_block: HashFunction, applied: int
) -> Session:
    """An empty pool and no rows. Raises ValueError when the limits leave no row or no token, or slots pass
    int32.
    """
    max_rows, budget = row_limit(config, capacity)
    if max_rows < 1 or capacity.num_blocks < 1 or capacity.block_size < 1:
        raise ValueError(
            f"no room to run: {max_rows} rows, {capacity.num_blocks} blocks of {capacity.block_size}"
        )
    if capacity.num_blocks * capacity.block_size >= 1 << 31:
        raise ValueError(f"num_blocks {capacity.num_blocks} of {capacity.block_size} pass 2^31 slots")
    rows = Rows(max_rows, capacity.block_size)
    manager = BlockManager(capacity, config, rows, counters, hash_block)
    return Session(
        capacity, budget, rows, manager, BatchBuilder(rows, capacity.block_size, budget), InFlight(), applied
    )

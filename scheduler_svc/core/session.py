"""All that lives only as long as a session with a worker: rows, blocks, steps in flight.

Owns their common life; does not know the queue or the notices. Invariant: dropping the object voids all
residency at once, for nothing outside it names a block or a row but `Sequence.row`.
"""

from dataclasses import dataclass

from scheduler_svc.core.ages import Ages
from scheduler_svc.core.batch_builder import BatchBuilder
from scheduler_svc.core.block_hash import HashFunction
from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.host_tier import HostCopy, HostTier
from scheduler_svc.core.in_flight import InFlight
from scheduler_svc.core.plan import Capacity, PreemptionMode, SchedulerConfig
from scheduler_svc.core.rows import Rows
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.stats import Counters

PREFILL_SHARE = 16
"""1 / PREFILL_SHARE of the token budget is never given to decodes."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The sequence at the head of the queue that did not fit, so that it is not matched again in vain.

    needed: blocks it lacked beside the reserve and those for further branches, hits on idle ones counted.
    num_published: of the index, at that time.
    """

    arrival: int = -1
    needed: int = 0
    num_published: int = 0

    def holds(self, arrival: int, spare: int, num_published: int) -> bool:
        return arrival == self.arrival and spare < self.needed and num_published == self.num_published


@dataclass(slots=True)
class Session:
    """budget: tokens of a step. applied: the last step whose answer was taken in. host: None where nothing is
    ever swapped out.
    """

    capacity: Capacity
    budget: int
    rows: Rows
    manager: BlockManager
    batch: BatchBuilder
    in_flight: InFlight
    applied: int
    blocked: Blocked
    host: HostTier | None

    @property
    def transfers(self) -> int:
        """Steps whose transfers out have not been acknowledged."""
        return 0 if self.host is None else self.host.num_unacknowledged

    def copy_of(self, seq: Sequence) -> HostCopy | None:
        """What the host tier holds of a waiting sequence."""
        return None if self.host is None else self.host.copies.get(seq.seq_id)

    def release(self, row: int, *, zero: bool) -> None:
        """Ends a row's stay. zero: what it wrote is not to be trusted."""
        self.batch.release_row(row)
        self.manager.release(row, trusted=not zero)


def row_limit(config: SchedulerConfig, budget: int, max_batch_seqs: int) -> int:
    """Rows of a step: so few that decodes leave tokens to prefills, if there is more than one token."""
    kept = max(1, budget // PREFILL_SHARE) if budget > 1 else 0
    return min(config.max_num_seqs, max_batch_seqs, budget - kept)


def open_session(
    capacity: Capacity,
    config: SchedulerConfig,
    counters: Counters,
    ages: Ages,
    hash_block: HashFunction,
    applied: int,
) -> Session:
    """An empty pool and no rows. Raises ValueError when the limits leave no room, or slots pass int32."""
    budget = min(config.max_num_batched_tokens, capacity.max_batch_tokens)
    max_rows = row_limit(config, budget, capacity.max_batch_seqs)
    if max_rows < 1 or capacity.num_blocks < 1 or capacity.block_size < 1:
        raise ValueError(f"no room: {max_rows} rows, {capacity.num_blocks} blocks of {capacity.block_size}")
    if capacity.num_blocks * capacity.block_size >= 1 << 31:
        raise ValueError(f"num_blocks {capacity.num_blocks} of {capacity.block_size} pass 2^31 slots")
    rows = Rows(max_rows, capacity.block_size)
    manager = BlockManager(capacity, config, rows, counters, ages, hash_block)
    batch = BatchBuilder(rows, budget)
    swaps = config.preemption is not PreemptionMode.RECOMPUTE and capacity.num_host_blocks > 0
    host = HostTier(capacity.num_host_blocks) if swaps else None
    return Session(capacity, budget, rows, manager, batch, InFlight(), applied, Blocked(), host)

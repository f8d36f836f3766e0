"""What the core counts, and the gauges it works out when asked.

Owns the counters' names (those of the metrics); does not know how they are exported. Invariant: counters only
rise and outlive a lost worker; gauges are computed from the live state, so none can be stuck.
"""

from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.ages import Ages
from scheduler_svc.core.decisions import PreemptionRecord
from scheduler_svc.core.plan import Int32Array


@dataclass(slots=True)
class Counters:
    """Totals since the core began. One object, counted in by every part of the core.

    Prefix counters are in tokens. lookup and hit: first admissions only; recompute_*: admissions after a
    preemption, a roll-back or a lost worker. alignment_lost: tokens that a cached block holds too but that a
    whole block could not give. copied: tokens given by copying such a block, in so many prefix_copies.
    forks: branches that began on the blocks of another; copies_on_write: blocks copied because a branch wrote
    to a shared one. preempted_tokens: computed tokens thrown away. overshoot_tokens: sampled for a sequence
    that had ended or gone back to the queue.
    """

    blocks_allocated: int = 0
    blocks_freed: int = 0
    blocks_evicted: int = 0
    blocks_swapped_out: int = 0
    blocks_swapped_in: int = 0
    prefix_lookup_tokens: int = 0
    prefix_hit_tokens: int = 0
    prefix_alignment_lost_tokens: int = 0
    prefix_copied_tokens: int = 0
    prefix_copies: int = 0
    forks: int = 0
    blocks_saved_by_forks: int = 0
    copies_on_write: int = 0
    prefix_collisions: int = 0
    prefix_flushed_blocks: int = 0
    recompute_lookup_tokens: int = 0
    recompute_hit_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    preempted_tokens: int = 0
    rollbacks: int = 0
    prompt_tokens_computed: int = 0
    generated_tokens: int = 0
    overshoot_tokens: int = 0
    steps_prefill: int = 0
    steps_decode: int = 0
    steps_mixed: int = 0
    steps_transfer: int = 0
    steps_failed: int = 0
    rows_failed: int = 0
    odd_results: int = 0
    odd_rows: int = 0
    worker_losses: int = 0

    def count_step(self, decodes: int, chunks: int) -> None:
        """A step with so many rows that decode and prefills; with none it only waits for transfers."""
        if not chunks and not decodes:
            self.steps_transfer += 1
        elif not chunks:
            self.steps_decode += 1
        elif decodes:
            self.steps_mixed += 1
        else:
            self.steps_prefill += 1

    def copy(self) -> "Counters":
        return Counters(*(getattr(self, f.name) for f in fields(self)))


class BlockState:
    """Values of `PoolMap.state`."""

    FREE = 0
    EVICTABLE = 1
    ACTIVE = 2
    FENCED = 3


@dataclass(frozen=True, slots=True)
class PoolMap:
    """Every block at one moment; arrays are copies of [num_blocks].

    state: a BlockState. ref_count: table entries that name the block. fill: tokens it holds. cached: findable
    by content.
    """

    state: npt.NDArray[np.uint8]
    ref_count: Int32Array
    fill: Int32Array
    cached: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Gauges at one moment and copies of counters, ages and the record of preemptions. block_refs -
    blocks_active blocks are saved by sharing. swapped: preempted sequences that the host tier holds.
    """

    counters: Counters
    num_blocks: int = 0
    block_size: int = 0
    blocks_free: int = 0
    blocks_evictable: int = 0
    blocks_active: int = 0
    blocks_fenced: int = 0
    blocks_shared: int = 0
    block_refs: int = 0
    slots_allocated: int = 0
    slots_filled: int = 0
    prefix_entries: int = 0
    running: int = 0
    waiting: int = 0
    preempted: int = 0
    in_flight: int = 0
    max_rows: int = 0
    ages: Ages = field(default_factory=Ages)
    preemption: PreemptionRecord = field(default_factory=PreemptionRecord)
    host_blocks: int = 0
    host_blocks_free: int = 0
    swapped: int = 0

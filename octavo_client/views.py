"""The client's views of a live KV pool, as frozen dataclasses.

Owns their names; knows no transport and no protobuf. Invariant: a value never changes after it is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class RequestView:
    """One live sequence as the scheduler sees it. index: which of the request's n. state: waiting, running
    or preempted; age in seconds. host_blocks: those of host memory that hold it while it is swapped out.
    """

    request_id: str
    state: str
    prompt_tokens: int
    cached_prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    blocks: int
    preemptions: int
    priority: int
    age_seconds: float
    index: int = 0
    host_blocks: int = 0


@dataclass(frozen=True)
class PoolStats:
    """Gauges and counters of the KV pool. free + evictable + active + fenced = num_blocks."""

    block_size: int
    bytes_per_block: int
    num_blocks: int
    free_blocks: int
    evictable_blocks: int
    active_blocks: int
    fenced_blocks: int
    shared_blocks: int
    block_refs: int
    slots_allocated: int
    slots_filled: int
    prefix_index_entries: int
    prefix_lookup_tokens: int
    prefix_hit_tokens: int
    evicted_blocks: int
    preemptions: int
    running_requests: int
    waiting_requests: int
    worker_ready: bool
    worker_epoch: str
    steps: int
    generated_tokens: int
    computed_prompt_tokens: int
    requests: tuple[RequestView, ...]

    @property
    def saved_blocks(self) -> int:
        """Blocks that sharing saves now: table entries beyond the blocks that hold them."""
        return max(0, self.block_refs - self.active_blocks)


@dataclass(frozen=True)
class PoolMap:
    """Every block: state [B] u8 (0 free, 1 evictable, 2 active, 3 fenced), ref_count [B] i32, fill [B] i32
    (slots that hold a token), cached [B] u8 (1 when the prefix index finds it).
    """

    block_size: int
    state: npt.NDArray[np.uint8]
    ref_count: npt.NDArray[np.int32]
    fill: npt.NDArray[np.int32]
    cached: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Explanation:
    """Why a request waits or what it was served. text: sentences, one a line. wait_reasons: no_worker,
    no_row, behind_others, no_blocks, transfer, next_step; empty when it runs, or transfer when its row waits
    for one. missing_blocks: what its admission
    lacks, 0 when nothing. next_evicted: evictable blocks, the first to go first.
    """

    request: RequestView
    text: str
    wait_reasons: tuple[str, ...]
    ahead: int
    missing_blocks: int
    next_evicted: tuple[int, ...]
    next_victim: str


@dataclass(frozen=True)
class SequenceBlock:
    """One entry of a block table. fill: slots that hold a token; hash_prefix is empty when not indexed."""

    block_id: int
    ref_count: int
    fill: int
    hash_prefix: str
    tier: str


@dataclass(frozen=True)
class SequenceBlocks:
    """The block table of one sequence, in order."""

    request_id: str
    index: int
    num_tokens: int
    blocks: tuple[SequenceBlock, ...]

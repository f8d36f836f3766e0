"""Which blocks are free, evictable, active or fenced: flat arrays, a stack of free ones, an LRU queue of
evictable ones.

Owns reference counts, pins and the order of reuse; does not know sequences, tokens or hashes (only a `cached`
flag). Invariant: each block is in exactly one state, ref_count is the number of table entries that name it,
and a pinned block, which a transfer on a side stream names, is in no list and so is never handed out.
"""

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.ages import Ages, BlockClock
from scheduler_svc.core.linked_lists import Index, LruQueue
from scheduler_svc.core.plan import Int32Array
from scheduler_svc.core.stats import Counters


class BlockPool:
    """num_blocks blocks. pins: transfers under way that name the block; a block that nobody holds is fenced
    while it has one.
    """

    def __init__(self, num_blocks: int, counters: Counters, ages: Ages) -> None:
        self.num_blocks = num_blocks
        self.ref_count: Int32Array = np.zeros(num_blocks, np.int32)
        self.cached: npt.NDArray[np.bool_] = np.zeros(num_blocks, np.bool_)
        self.pins: Int32Array = np.zeros(num_blocks, np.int32)
        self.num_pins = 0  # their sum
        self.num_fenced = 0
        self.lru = LruQueue(num_blocks)
        self.clock = BlockClock(num_blocks, ages)
        self._stack: Int32Array = np.arange(num_blocks, dtype=np.int32)[::-1].copy()
        self.num_free = num_blocks
        self._counters = counters

    @property
    def available(self) -> int:
        """Blocks that `take` could hand out now: free and evictable ones."""
        return self.num_free + self.lru.count

    @property
    def num_active(self) -> int:
        return self.num_blocks - self.available - self.num_fenced

    def free_blocks(self) -> Int32Array:
        """[num_free] the free blocks, next to be taken last."""
        return self._stack[: self.num_free]

    def take(self, count: int) -> tuple[Int32Array, Int32Array]:
        """Hands out blocks with ref_count 1: free ones first, then the least recently used evictable ones.

        Returns (all taken [count], the evicted ones among them). The caller removes the evicted ones from the
        index.
        """
        assert count <= self.available
        fresh = min(count, self.num_free)
        self.num_free -= fresh
        taken = self._stack[self.num_free : self.num_free + fresh][::-1].copy()
        evicted = taken[:0]
        if fresh < count:
            evicted = self.lru.take_oldest(count - fresh)
            self.cached[evicted] = False
            self._counters.blocks_evicted += len(evicted)
            self.clock.evicted(evicted)
            taken = np.concatenate((taken, evicted))
        self.ref_count[taken] = 1
        self.clock.taken(taken)
        self._counters.blocks_allocated += count
        return taken, evicted

    def share(self, blocks: Index) -> None:
        """One more table entry for each of these cached blocks; an evictable one leaves the LRU queue.

        A fenced one is active again: its content stays, and the transfer only reads it.
        """
        idle = blocks[self.ref_count[blocks] == 0]
        if len(idle):
            listed = self._unpinned(idle)
            self.num_fenced -= len(idle) - len(listed)
            self.lru.discard(listed[::-1])  # a chain lies deepest first in the queue
            self.clock.hit_again(idle)
        self.ref_count[blocks] += 1

    def release(self, blocks: Index) -> None:
        """One table entry less for each block (no block twice). Those nobody holds become evictable or free,
        in order, or fenced.
        """
        self.ref_count[blocks] -= 1
        idle = blocks[self.ref_count[blocks] == 0]
        self._counters.blocks_freed += len(idle)
        self.clock.released(idle)
        listed = self._unpinned(idle)
        self.num_fenced += len(idle) - len(listed)
        self._list(listed)

    def pin(self, blocks: Index) -> None:
        """A transfer that reads these blocks (no block twice) is under way."""
        self.pins[blocks] += 1
        self.num_pins += len(blocks)

    def unpin(self, blocks: Index) -> None:
        """The transfer is done: those that were fenced for it alone become evictable or free, in order."""
        self.pins[blocks] -= 1
        self.num_pins -= len(blocks)
        freed = blocks[(self.pins[blocks] == 0) & (self.ref_count[blocks] == 0)]
        self.num_fenced -= len(freed)
        self._list(freed)

    def num_listed(self, blocks: Index) -> int:
        """How many of these blocks `take` could hand out."""
        return int(np.count_nonzero((self.ref_count[blocks] == 0) & (self.pins[blocks] == 0)))

    def forget(self, blocks: Index) -> None:
        """These blocks have no findable content any more; an evictable one becomes free."""
        self.cached[blocks] = False
        idle = self._unpinned(blocks[self.ref_count[blocks] == 0])
        self.lru.discard(idle)
        self._end(idle)

    def _unpinned(self, blocks: Index) -> Index:
        return blocks[self.pins[blocks] == 0] if self.num_pins else blocks

    def _list(self, blocks: Index) -> None:
        """These blocks, which nobody holds, become evictable or free."""
        kept = self.cached[blocks]
        self.lru.append(blocks[kept])
        self._end(blocks[~kept])

    def _end(self, blocks: Index) -> None:
        """These blocks become free."""
        if len(blocks):
            self.clock.ended(blocks)
            self._stack[self.num_free : self.num_free + len(blocks)] = blocks
            self.num_free += len(blocks)

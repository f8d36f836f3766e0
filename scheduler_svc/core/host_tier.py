"""The host blocks to which sequences are swapped out: who owns which, and which transfers are under way.

Owns the host blocks' states; does not know the device's blocks beyond the numbers that a transfer names.
Invariant: each host block is free, part of one copy, or held until a transfer that names it is done; a copy
is whole or not there.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from scheduler_svc.core.plan import Int32Array, SeqId, StepId

Tenure = tuple[int, int]
"""(row, tenure number): a sequence's stay in a row."""


@dataclass(slots=True, eq=False)
class HostCopy:
    """Tokens [0, computed) of a sequence in these host blocks, moved there from these device blocks.

    done: its transfer was acknowledged. wanted: False once its sequence has ended, or what it holds is not to
    be trusted. seconds: what the transfer took at the worker. flushed: what it holds is not to be found.
    """

    blocks: Int32Array
    device: Int32Array
    computed: int
    done: bool = False
    wanted: bool = True
    seconds: float = 0.0
    flushed: bool = False


class HostTier:
    """num_blocks host blocks of one session with a worker."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.copies: dict[SeqId, HostCopy] = {}
        self.departed: dict[Tenure, SeqId] = {}
        """Stays that a swap-out ended while steps of them were in flight."""
        self._departures: deque[tuple[StepId, Tenure]] = deque()
        self._free: Int32Array = np.arange(num_blocks, dtype=np.int32)[::-1].copy()
        self.num_free = num_blocks
        self._leaving: dict[StepId, list[HostCopy]] = {}
        self._returning: deque[tuple[StepId, Int32Array]] = deque()

    @property
    def num_unacknowledged(self) -> int:
        """Steps whose transfers out have not been acknowledged."""
        return len(self._leaving)

    def swap_out(
        self,
        seq_id: SeqId,
        stay: Tenure,
        device: Int32Array,
        computed: int,
        step_id: StepId,
        flushed: bool = False,
    ) -> Int32Array:
        """Takes host blocks for these device blocks; there must be so many. Returns them [n].

        step_id: the plan that moves them. stay: the sequence's, which ends with it. flushed: what they hold
        is not to be found.
        """
        assert len(device) <= self.num_free
        self.num_free -= len(device)
        taken = self._free[self.num_free : self.num_free + len(device)][::-1].copy()
        copy = HostCopy(taken, device, computed, flushed=flushed)
        self.copies[seq_id] = copy
        self._leaving.setdefault(step_id, []).append(copy)
        self.departed[stay] = seq_id
        self._departures.append((step_id, stay))
        return taken

    def swap_in(self, seq_id: SeqId, step_id: StepId) -> None:
        """The plan moves the copy's blocks back; they are held until its answer."""
        copy = self.copies.pop(seq_id)
        assert copy.done
        self._returning.append((step_id, copy.blocks))

    def discard(self, seq_id: SeqId) -> None:
        """Gives up a sequence's copy, if it has one: its blocks are free at once, or once written."""
        copy = self.copies.pop(seq_id, None)
        if copy is not None:
            copy.wanted = False
            if copy.done:
                self._give_back(copy.blocks)

    def acknowledge(self, step_id: StepId) -> list[HostCopy]:
        """The transfers out of that step are done; returns their copies."""
        done = self._leaving.pop(step_id, [])
        for copy in done:
            copy.done = True
            if not copy.wanted:
                self._give_back(copy.blocks)
        return done

    def answered(self, step_id: StepId) -> None:
        """The step was answered: what it moved back is given back, older stays have no step in flight."""
        while self._returning and self._returning[0][0] <= step_id:
            self._give_back(self._returning.popleft()[1])
        while self._departures and self._departures[0][0] <= step_id:
            self.departed.pop(self._departures.popleft()[1], None)

    def pinned(self) -> list[Int32Array]:
        """The device blocks of each transfer out that is under way; for audits."""
        return [copy.device for leaving in self._leaving.values() for copy in leaving]

    def held(self) -> list[Int32Array]:
        """The host blocks that are not free, by holder; for audits."""
        leaving = [copy for copies in self._leaving.values() for copy in copies if not copy.wanted]
        holders = [*self.copies.values(), *leaving]
        return [copy.blocks for copy in holders] + [blocks for _, blocks in self._returning]

    def free_blocks(self) -> Int32Array:
        """[num_free] the free host blocks."""
        return self._free[: self.num_free]

    def _give_back(self, blocks: Int32Array) -> None:
        self._free[self.num_free : self.num_free + len(blocks)] = blocks[::-1]
        self.num_free += len(blocks)

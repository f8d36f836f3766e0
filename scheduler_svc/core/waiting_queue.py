"""The sequences that wait for a row, best first: by rank, then by arrival.

Owns their order; does not know why they wait. Invariant: a preempted sequence stands before every younger one
of its rank, adding, taking and removing cost O(log n), and removed entries never outnumber the live ones
by more than a few.
"""

import heapq

from scheduler_svc.core.sequence import Sequence

_SLACK = 64


def rank_of(priority: int, arrived_at: float, aging: float) -> float:
    """Smaller is better. aging: seconds of waiting that weigh as much as one step of priority.

    Two that wait age alike, so who is better never changes, and the rank is fixed at arrival: after
    `aging * d` seconds nobody who arrives with a priority d steps better stands before. 0: only priorities
    count.
    """
    return arrived_at + priority * aging if aging else float(priority)


class WaitingQueue:
    """A heap of (rank, arrival, sequence) with lazy removal."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._present: dict[int, Sequence] = {}  # by arrival number

    def __len__(self) -> int:
        return len(self._present)

    def push(self, seq: Sequence) -> None:
        self._present[seq.arrival] = seq
        heapq.heappush(self._heap, (*seq.order, seq))

    def head(self) -> Sequence | None:
        while self._heap:
            _, arrival, seq = self._heap[0]
            if arrival in self._present:
                return seq
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Sequence:
        """Takes out the head; there must be one."""
        seq = self.head()
        assert seq is not None
        heapq.heappop(self._heap)
        del self._present[seq.arrival]
        return seq

    def remove(self, seq: Sequence) -> None:
        del self._present[seq.arrival]
        if len(self._heap) > 2 * len(self._present) + _SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in self._present]
            heapq.heapify(self._heap)

    def sequences(self) -> list[Sequence]:
        """All of them, in no order."""
        return list(self._present.values())

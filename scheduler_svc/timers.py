"""The engine's alarm clock.

Owns the one armed timer of the loop and the queue deadlines; knows neither core nor stream. Invariant: the
engine is woken at or after the nearest asked time, never much before it.
"""

import asyncio
import heapq
from collections.abc import Callable

from scheduler_svc.requests import Record

_LEAST_SWEEP = 1024


def _waits(record: Record) -> bool:
    return not record.ended and record.admitted_at is None


class Alarm:
    """Calls `wake` at the nearest asked time. clock: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float], wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0

    def set(self, when: float | None) -> None:
        """Arms the alarm for `when` unless it is armed for that time or an earlier one; None disarms it."""
        if self._handle is not None:
            if when is not None and self._at <= when:
                return
            self._handle.cancel()
            self._handle = None
        if when is not None:
            self._at = when
            delay = max(0.0, when - self._clock())
            self._handle = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._handle = None
        self._wake()


class QueueDeadlines:
    """Requests that may wait only so long for their first step, soonest first.

    Those that no longer wait are swept out when the heap has doubled, so it stays near the number that do.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Record]] = []
        self._sweep_at = _LEAST_SWEEP

    def add(self, record: Record) -> None:
        if record.queue_deadline is None:
            return
        heapq.heappush(self._heap, (record.queue_deadline, record.seq_id, record))
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if _waits(entry[2])]
            heapq.heapify(self._heap)
            self._sweep_at = max(_LEAST_SWEEP, 2 * len(self._heap))

    def __len__(self) -> int:
        return len(self._heap)

    def next(self) -> float | None:
        """The soonest deadline of a request that still waits."""
        while self._heap and not _waits(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Record]:
        """Takes out the requests whose deadline has passed while they waited."""
        found: list[Record] = []
        while (deadline := self.next()) is not None and deadline <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found

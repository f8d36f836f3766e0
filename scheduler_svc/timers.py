"""The engine's alarm clock.

Owns the one armed timer of the loop and the queue deadlines; knows neither core nor stream. Invariant: the
engine is woken at or after the nearest asked time, never much before it.
"""

import asyncio
import heapq
from collections.abc import Callable

from scheduler_svc.requests import Record


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
    """Requests that may wait only so long for their first step, soonest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Record]] = []

    def add(self, record: Record) -> None:
        if record.queue_deadline is not None:
            heapq.heappush(self._heap, (record.queue_deadline, record.seq_id, record))

    def next(self) -> float | None:
        """The soonest deadline of a request that still waits."""
        while self._heap and (self._heap[0][2].ended or self._heap[0][2].admitted_at is not None):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Record]:
        """Takes out the requests whose deadline has passed while they waited."""
        found: list[Record] = []
        while (deadline := self.next()) is not None and deadline <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found

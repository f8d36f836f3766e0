"""How long blocks live and lie idle, and how long preempted sequences wait: all of them, not a sample.

Owns the moments of each block's last change and the histograms; does not know why a block changes. Invariant:
each life, idle time, reuse and wait that ended is counted once.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.linked_lists import Index

AGE_BOUNDS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
"""Upper bounds in seconds."""

_BOUNDS = np.array(AGE_BOUNDS)
_UNSORTED = 64


class AgeHistogram:
    """counts: [len(AGE_BOUNDS) + 1] values up to each bound (inclusive), the last beyond; total: their sum.

    Values are sorted into the counts when these are read, or when many have come together.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(len(AGE_BOUNDS) + 1, np.int64)
        self._total = 0.0
        self._unsorted: list[npt.NDArray[np.float64]] = []

    @property
    def counts(self) -> list[int]:
        self._sort()
        counts: list[int] = self._counts.tolist()
        return counts

    @property
    def total(self) -> float:
        self._sort()
        return self._total

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AgeHistogram):
            return NotImplemented
        return self.counts == other.counts and self.total == other.total

    __hash__ = None  # type: ignore[assignment]

    def observe(self, seconds: npt.NDArray[np.float64]) -> None:
        self._unsorted.append(seconds)
        if len(self._unsorted) >= _UNSORTED:
            self._sort()

    def copy(self) -> "AgeHistogram":
        self._sort()
        other = AgeHistogram()
        other._counts, other._total = self._counts.copy(), self._total
        return other

    def _sort(self) -> None:
        if self._unsorted:
            seconds, self._unsorted = np.concatenate(self._unsorted), []
            self._counts += np.bincount(np.searchsorted(_BOUNDS, seconds), minlength=len(self._counts))
            self._total += float(seconds.sum())


@dataclass(slots=True)
class Ages:
    """Histograms since the core began.

    lifetime: a block was handed out until its content was given up. idle: nobody held it before it was
    evicted. reuse_gap: nobody held it before it was hit again. preempted: a sequence waited to come back.
    """

    lifetime: AgeHistogram = field(default_factory=AgeHistogram)
    idle: AgeHistogram = field(default_factory=AgeHistogram)
    reuse_gap: AgeHistogram = field(default_factory=AgeHistogram)
    preempted: AgeHistogram = field(default_factory=AgeHistogram)

    def copy(self) -> "Ages":
        return Ages(self.lifetime.copy(), self.idle.copy(), self.reuse_gap.copy(), self.preempted.copy())


class BlockClock:
    """When each block was handed out and when it was last let go. now: seconds, set by the scheduler."""

    def __init__(self, num_blocks: int, ages: Ages) -> None:
        self.now = 0.0
        self._ages = ages
        self._taken = np.zeros(num_blocks)
        self._released = np.zeros(num_blocks)

    def taken(self, blocks: Index) -> None:
        self._taken[blocks] = self.now

    def released(self, blocks: Index) -> None:
        self._released[blocks] = self.now

    def taken_at(self, block: int) -> float:
        """When the block was last handed out."""
        return float(self._taken[block])

    def released_at(self, block: int) -> float:
        """When nobody held the block any more, the last time."""
        return float(self._released[block])

    def hit_again(self, blocks: Index) -> None:
        self._ages.reuse_gap.observe(self.now - self._released[blocks])

    def evicted(self, blocks: Index) -> None:
        self._ages.idle.observe(self.now - self._released[blocks])
        self.ended(blocks)

    def ended(self, blocks: Index) -> None:
        self._ages.lifetime.observe(self.now - self._taken[blocks])

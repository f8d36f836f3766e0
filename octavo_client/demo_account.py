"""What the demo measures: answers with their times, the pool's peaks, the account of both.

Owns the sums; asks nobody and draws nothing. Invariant: a peak never falls.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_client.types import Accepted, Finished
from octavo_client.views import PoolMap, PoolStats


@dataclass
class Answer:
    """One answer as it came; times in seconds since its request was sent."""

    question: str
    text: str = ""
    accepted: Accepted | None = None
    finished: Finished | None = None
    first_token: float | None = None
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return self.finished.usage.completion_tokens if self.finished else 0

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first."""
        span = self.seconds - (self.first_token or 0.0)
        return (self.tokens - 1) / span if self.tokens > 1 and span > 0 else 0.0


@dataclass
class PoolPeaks:
    """The largest readings of the pool while requests ran, and the map at the moment of the most sharing."""

    active: int = 0
    shared: int = 0
    saved: int = 0
    refs: int = 0
    at_most_shared: PoolMap | None = None

    def see(self, stats: PoolStats) -> bool:
        """Enters a reading; True when it shows more sharing than any before."""
        self.active = max(self.active, stats.active_blocks)
        self.refs = max(self.refs, stats.block_refs)
        self.saved = max(self.saved, stats.saved_blocks)
        more = stats.shared_blocks > self.shared
        self.shared = max(self.shared, stats.shared_blocks)
        return more


@dataclass
class Account:
    """What the demo found, for the last picture."""

    first: Answer
    crowd: list[Answer]
    crowd_seconds: float
    before: PoolStats
    after: PoolStats
    peaks: PoolPeaks

"""The record of preemptions: what was chosen and why, what it was estimated to cost, and what it cost.

Owns the counts and the error of the estimates; decides nothing. Invariant: each preemption is counted once
under its mode and reason, and its error once, when its sequence has come back and its cost was measured.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum

ERROR_BOUNDS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of |estimate - cost| / cost."""


class Mode(Enum):
    RECOMPUTE = "recompute"
    SWAP = "swap"


class Reason(Enum):
    """Why this mode. FORCED: by the setting, or because there is no host tier. COST: it was estimated to be
    cheaper. HOST_FULL: the host tier had no room for the whole sequence. NEED: the present plan needed
    blocks, and a swap would have given them too late.
    """

    FORCED = "forced"
    COST = "cost"
    HOST_FULL = "host_full"
    NEED = "need"


PAIRS = (
    *((Mode.RECOMPUTE, reason) for reason in Reason),
    (Mode.SWAP, Reason.FORCED),
    (Mode.SWAP, Reason.COST),
)
"""The modes and reasons that occur together."""


@dataclass(slots=True, eq=False)
class Decision:
    """One preemption. Seconds: recompute and swap as estimated; cost as measured so far.

    computed: tokens that the sequence had; findable: those of them that the index held then.
    """

    mode: Mode
    reason: Reason
    recompute_seconds: float
    swap_seconds: float
    computed: int = 0
    findable: int = 0
    cost: float = 0.0

    @property
    def estimate(self) -> float:
        return self.swap_seconds if self.mode is Mode.SWAP else self.recompute_seconds


@dataclass(slots=True)
class ErrorHistogram:
    """counts: [len(ERROR_BOUNDS) + 1] values up to each bound (inclusive), the last beyond."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(ERROR_BOUNDS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(ERROR_BOUNDS, value)] += 1
        self.total += value


@dataclass(slots=True)
class PreemptionRecord:
    """Totals since the core began; what was estimated and what it cost in seconds, of those measured."""

    counts: dict[tuple[Mode, Reason], int] = field(default_factory=lambda: dict.fromkeys(PAIRS, 0))
    lost_tokens: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))
    estimated: dict[Mode, float] = field(default_factory=lambda: dict.fromkeys(Mode, 0.0))
    cost: dict[Mode, float] = field(default_factory=lambda: dict.fromkeys(Mode, 0.0))
    errors: dict[Mode, ErrorHistogram] = field(
        default_factory=lambda: {mode: ErrorHistogram() for mode in Mode}
    )

    def chosen(self, decision: Decision) -> None:
        self.counts[decision.mode, decision.reason] += 1
        if decision.mode is Mode.RECOMPUTE:
            self.lost_tokens[decision.mode] += decision.computed

    def came_back(self, decision: Decision) -> None:
        """Its sequence runs again and all that it cost was measured."""
        if decision.cost > 0:
            self.estimated[decision.mode] += decision.estimate
            self.cost[decision.mode] += decision.cost
            self.errors[decision.mode].observe(abs(decision.estimate - decision.cost) / decision.cost)

    def copy(self) -> "PreemptionRecord":
        errors = {mode: ErrorHistogram(list(e.counts), e.total) for mode, e in self.errors.items()}
        return PreemptionRecord(
            dict(self.counts), dict(self.lost_tokens), dict(self.estimated), dict(self.cost), errors
        )

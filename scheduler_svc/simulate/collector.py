"""What a run is asked to remember: waits, gaps between tokens, and the pool over virtual time.

Owns the raw measurements; decides nothing and works out no figure (`results` does). Invariant: at most
MAX_SAMPLES looks at the pool are kept, evenly spread over the run, whatever its length.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.plan import (
    Admitted,
    Finished,
    FinishReason,
    Refusal,
    StepPlan,
    TokenEvents,
)
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.stats import PoolStats

FloatArray = npt.NDArray[np.float64]

MAX_SAMPLES = 512
FIRST_INTERVAL = 0.05
"""Seconds between two looks at the pool, until there are MAX_SAMPLES; then it doubles, and again."""

_UNKNOWN = -1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The pool and the queue at one moment of virtual time."""

    seconds: float
    running: int
    waiting: int
    blocks_active: int
    blocks_evictable: int
    slots_allocated: int
    slots_filled: int
    blocks_saved: int


@dataclass(slots=True)
class Collector:
    """Of one run of `count` requests of n sequences each; request i has the ids from i * n on.

    Arrays are by sequence id. Times are virtual seconds.
    """

    count: int
    span: float
    n: int = 1
    arrived_at: FloatArray = field(init=False)
    admitted_at: FloatArray = field(init=False)
    first_token_at: FloatArray = field(init=False)
    last_token_at: FloatArray = field(init=False)
    ended_at: FloatArray = field(init=False)
    gaps: list[FloatArray] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    timed_out: int = 0
    samples: list[Sample] = field(default_factory=list)
    steps: int = 0
    step_seconds: float = 0.0
    step_rows: int = 0
    step_tokens: int = 0
    most_rows: int = 0
    seconds: float = 0.0
    stats: PoolStats | None = None
    _interval: float = field(init=False)
    _next_sample: float = 0.0

    def __post_init__(self) -> None:
        for name in ("arrived_at", "admitted_at", "first_token_at", "last_token_at", "ended_at"):
            setattr(self, name, np.full(self.count * self.n, _UNKNOWN))
        self._interval = max(FIRST_INTERVAL, self.span / MAX_SAMPLES)

    def arrived(self, number: int, moment: float, refusal: Refusal | None) -> None:
        self.arrived_at[number * self.n : (number + 1) * self.n] = moment
        if refusal is not None:
            self.refusals[refusal.reason.value] += 1

    def admitted(self, admitted: Admitted, moment: float) -> None:
        self.admitted_at[admitted.seq_id : admitted.seq_id + self.n] = moment

    def is_waiting(self, number: int) -> bool:
        """Whether it has neither been admitted nor ended."""
        first = number * self.n
        return bool(self.admitted_at[first] == _UNKNOWN and self.ended_at[first] == _UNKNOWN)

    def gave_up(self, number: int) -> None:
        self.timed_out += 1

    def finished(self, finished: Finished, moment: float) -> None:
        self.ended_at[finished.seq_id] = moment
        if finished.reason is not FinishReason.ABORTED:
            self.reasons[finished.reason.value] += 1

    def sent(self, plan: StepPlan, seconds: float) -> None:
        self.steps += 1
        self.step_seconds += seconds
        self.step_rows += len(plan.rows)
        self.step_tokens += len(plan.input_ids)
        self.most_rows = max(self.most_rows, len(plan.rows))

    def answered(self, moment: float, events: TokenEvents) -> None:
        numbers = events.seq_ids
        later = events.output_lens > 1
        if not later.all():
            first = numbers[~later]
            self.first_token_at[first] = moment
            numbers, later = numbers[later], later[later]
            self.last_token_at[first] = moment
        if len(numbers):
            self.gaps.append(moment - self.last_token_at[numbers])
            self.last_token_at[numbers] = moment

    def at(self, moment: float, core: Scheduler) -> None:
        """Looks at the pool when it is time: it stays as it is from now to `moment`."""
        if moment < self._next_sample:
            return
        stats = core.stats()
        while self._next_sample <= moment:
            self.samples.append(_sample(self._next_sample, stats))
            self._next_sample += self._interval
            if len(self.samples) == MAX_SAMPLES:
                self.samples = self.samples[::2]
                self._interval *= 2
                self._next_sample = self.samples[-1].seconds + self._interval

    def close(self, moment: float, core: Scheduler) -> None:
        self.seconds = moment
        self.stats = core.stats()


def _sample(moment: float, stats: PoolStats) -> Sample:
    return Sample(
        moment, stats.running, stats.waiting, stats.blocks_active, stats.blocks_evictable,
        stats.slots_allocated, stats.slots_filled, stats.block_refs - stats.blocks_active,
    )  # fmt: skip

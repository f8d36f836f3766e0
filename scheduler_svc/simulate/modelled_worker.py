"""The worker's half of a run: when a plan is computed, and when its transfers are done.

Owns the two streams of the modelled device; knows neither the core nor what is sampled. Invariant: steps run
one at a time in the order of their plans, and so do transfers out, each after the steps before its own.
"""

from collections import deque
from dataclasses import dataclass, field

from scheduler_svc.core.plan import Int32Array, Int64Array, StepId, StepPlan, StepResult
from scheduler_svc.simulate.worker_model import StepTimes


@dataclass(frozen=True, slots=True)
class Sent:
    """A plan at the worker. seq_ids: [S] whose samples they are. ends_at: when its answer comes. forward and
    moves: seconds of it, the latter of its swap-ins.
    """

    plan: StepPlan
    seq_ids: Int64Array
    ends_at: float
    forward: float
    moves: float

    @property
    def seconds(self) -> float:
        return self.forward + self.moves


@dataclass(slots=True)
class ModelledWorker:
    """Times are seconds on the virtual clock."""

    times: StepTimes
    block_size: int
    _computes_until: float = 0.0
    _copies_until: float = 0.0
    _transfers: deque[tuple[StepId, float, float]] = field(default_factory=deque)  # step, done at, seconds

    def send(self, plan: StepPlan, seq_ids: Int64Array, now: float) -> Sent:
        """Takes in the next plan. One without rows ends when every transfer out has."""
        begins = max(now, self._computes_until)
        if len(plan.swap_out_pairs):
            seconds = self.times.move_seconds(len(plan.swap_out_pairs), self.block_size)
            self._copies_until = max(begins, self._copies_until) + seconds
            self._transfers.append((plan.step_id, self._copies_until, seconds))
        forward = self.times.seconds(plan, self.block_size) if len(plan.rows) else 0.0
        moves = self.times.move_seconds(len(plan.swap_in_pairs), self.block_size)
        ends_at = begins + forward + moves
        self._computes_until = ends_at if len(plan.rows) else max(ends_at, self._copies_until)
        return Sent(plan, seq_ids, self._computes_until, forward, moves)

    def answer(self, sent: Sent, tokens: Int32Array) -> StepResult:
        """The answer to the oldest plan, with the transfers that are done by then."""
        done = []
        while self._transfers and self._transfers[0][1] <= sent.ends_at:
            done.append(self._transfers.popleft())
        return StepResult(
            sent.plan.step_id,
            tokens,
            acknowledged=tuple(step_id for step_id, _, _ in done),
            forward_seconds=sent.forward,
            block_move_seconds=sent.moves,
            transfer_seconds=sum(seconds for _, _, seconds in done),
        )

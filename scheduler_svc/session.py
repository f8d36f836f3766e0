"""One session with one worker: what was sent, what is still owed, and which answers count.

Owns the steps in flight, their order and their deadline; knows neither the channel nor the core. Invariant:
results leave in the order of the steps, each exactly once, and nothing of another session or epoch leaves at
all.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.logprobs import Asked, AskingRows, StepLogprobs, decode_logprobs
from scheduler_svc.wire import (
    DecodedResult,
    StepNumbering,
    decode_result,
    encode_plan,
    failed,
    without_rows,
)

if TYPE_CHECKING:
    from scheduler_svc.tracing import StepTrace, StepTracer


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step that was sent and not answered. sent_at: seconds of the engine's clock. asked: the
    log-probabilities that its answer has to report. trace: its span, if it is traced.
    """

    step: int
    plan: StepPlan
    sent_at: float
    asked: Asked | None
    trace: "StepTrace | None" = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A decoded result with the seconds from its plan's departure to its arrival."""

    decoded: DecodedResult
    rpc_seconds: float
    logprobs: StepLogprobs | None = None


class Session:
    """The state of a step stream from its handshake to its end.

    vocab_size: ids at or above it are refused in answers. oddity: called with the kind of each odd answer.
    transmit: takes an encoded plan, never blocks. tracer: makes the spans of steps; None: none.
    """

    def __init__(
        self,
        session_id: int,
        epoch: int,
        vocab_size: int,
        transmit: Callable[[worker_pb2.StepPlan], None],
        oddity: Callable[[str], None],
        tracer: "StepTracer | None" = None,
    ) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.closed = False
        self._vocab_size = vocab_size
        self._transmit = transmit
        self._oddity = oddity
        self._tracer = tracer
        self._numbering: StepNumbering | None = None
        self._previous: StepPlan | None = None
        self._asking = AskingRows()
        self._transfers: set[int] = set()  # core steps whose swap-outs are not acknowledged
        self._in_flight: deque[InFlight] = deque()
        self._early: dict[int, worker_pb2.StepResult] = {}

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def oldest_sent_at(self) -> float | None:
        """When the oldest unanswered step was sent, or None."""
        return self._in_flight[0].sent_at if self._in_flight else None

    def send(self, plan: StepPlan, now: float) -> int:
        """Encodes and sends a plan. Returns its bytes on the wire."""
        if self._numbering is None:
            self._numbering = StepNumbering(self.session_id, self.epoch, plan.step_id - 1)
        message = encode_plan(plan, self._previous, self._numbering)
        self._previous = plan
        if plan.swap_out_pairs.size:
            self._transfers.add(plan.step_id)
        trace = None
        if self._tracer is not None:
            trace, message.traceparent = self._tracer.sent(plan, message.step_id, now)
        self._in_flight.append(InFlight(message.step_id, plan, now, self._asking.asked(plan), trace))
        self._transmit(message)
        return message.ByteSize()

    def close(self, now: float) -> None:
        """No answer counts any more."""
        self.closed = True
        for flight in self._in_flight:
            if flight.trace is not None:
                flight.trace.lost(now)

    def take(self, message: worker_pb2.StepResult, now: float) -> list[Answer]:
        """The answers that an arriving result completes, in step order: none, one, or more when it closes a
        gap.
        """
        if self.closed or (message.session_id, message.worker_epoch) != (self.session_id, self.epoch):
            self._oddity("stale_session")
            return []
        steps = {flight.step for flight in self._in_flight}
        if message.step_id not in steps or message.step_id in self._early:
            self._oddity("unexpected_step")
            return []
        if message.step_id != self._in_flight[0].step:
            self._oddity("out_of_order")
        self._early[message.step_id] = message
        answers: list[Answer] = []
        while self._in_flight and self._in_flight[0].step in self._early:
            flight = self._in_flight.popleft()
            answers.append(self._answer(self._early.pop(flight.step), flight, now))
        return answers

    def _answer(self, message: worker_pb2.StepResult, flight: InFlight, now: float) -> Answer:
        decoded = decode_result(message, flight.plan, self._vocab_size)
        self._transfers.difference_update(decoded.result.acknowledged)
        if not flight.plan.rows.size and any(step <= flight.plan.step_id for step in self._transfers):
            decoded = failed(decoded, "a step without rows left transfers without acknowledgement")
        logprobs: StepLogprobs | None = None
        if flight.asked is not None and decoded.result.failure is None:
            logprobs = decode_logprobs(message, flight.asked)
            if logprobs is None:
                decoded = without_rows(decoded, flight.plan, flight.asked.rows)
        for kind in decoded.oddities:
            self._oddity(kind)
        if flight.trace is not None:
            flight.trace.answered(decoded, now)
        return Answer(decoded, now - flight.sent_at, logprobs)

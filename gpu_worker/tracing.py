"""Spans of steps in the worker, for plans that a scheduler traces.

Owns their attributes; knows no tensor. A process that does not trace never imports it. Invariant: a plan
without a traceparent leaves no trace, and every span that is begun is ended.
"""

import time

from opentelemetry.trace import Span, SpanKind

from gpu_worker.model_runner import StepOutcome
from octavo.logging import epoch_text
from octavo.tracing import Tracing, Value
from octavo.worker.v1 import worker_pb2

_Key = tuple[int, int]


class WorkerTracing:
    """Called from the threads of the step loop, each step by one of them at a time."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._spans: dict[_Key, Span] = {}

    def launching(self, plan: worker_pb2.StepPlan) -> None:
        """The device is given the plan."""
        if not plan.traceparent:
            return
        attributes: dict[str, Value] = {
            "octavo.step_id": plan.step_id,
            "octavo.epoch": epoch_text(plan.worker_epoch),
            "octavo.session_id": epoch_text(plan.session_id),
        }
        self._spans[_key(plan)] = self._tracing.span(
            "worker step", SpanKind.SERVER, plan.traceparent, time.monotonic(), attributes
        )

    def done(self, plan: worker_pb2.StepPlan, outcome: StepOutcome) -> None:
        """The device is done with the plan."""
        span = self._spans.pop(_key(plan), None)
        if span is None:
            return
        now = time.monotonic()
        span.set_attribute("octavo.gap_seconds", outcome.gap_seconds)
        span.set_attribute("octavo.block_move_seconds", outcome.block_move_seconds)
        forward = self._tracing.span("forward", SpanKind.INTERNAL, span, now - outcome.forward_seconds, {})
        self._tracing.end(forward, now)
        self._tracing.end(span, now)

    def failed(self, plan: worker_pb2.StepPlan, reason: str) -> None:
        """The plan has failed before or on the device."""
        span = self._spans.pop(_key(plan), None)
        if span is not None:
            self._tracing.end(span, time.monotonic(), reason)

    def close(self) -> None:
        self._tracing.close()


def _key(plan: worker_pb2.StepPlan) -> _Key:
    return plan.session_id, plan.step_id

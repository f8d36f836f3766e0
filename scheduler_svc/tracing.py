"""Spans of requests and of the steps that computed them.

Owns names and attributes of the scheduler's spans; knows neither gRPC nor the core. A process that does not
trace never imports it. Invariant: no attribute holds text or token ids of a prompt or an answer, and every
span that is begun is ended.
"""

from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.trace import Span, SpanKind

from octavo.errors import OctavoError
from octavo.logging import epoch_text
from octavo.trace_context import current_traceparent
from octavo.tracing import Tracing, Value, traceparent_of
from scheduler_svc.core.plan import Finished, StepPlan
from scheduler_svc.limits import ChatPrompt, CheckedRequest
from scheduler_svc.requests import Branch, Record
from scheduler_svc.wire import DecodedResult


class RequestTrace:
    """The span of one request, from its arrival to its end, with its phases below it."""

    def __init__(self, tracing: Tracing, arrival: float) -> None:
        parent = current_traceparent.get()
        self._tracing = tracing
        self._reasons: dict[int, str] = {}
        self._steps = 0
        self.span = tracing.span(
            "generate", SpanKind.SERVER, parent, arrival, {"gen_ai.provider.name": "octavo"}
        )
        self.recorded = self.span.is_recording()

    def describe(self, checked: CheckedRequest, record: Record, model: str) -> None:
        """What was asked for: shapes and settings, no content."""
        operation = "chat" if isinstance(checked.prompt, ChatPrompt) else "text_completion"
        self.span.update_name(f"{operation} {model}")
        asked: dict[str, Value | None] = {
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "gen_ai.response.id": record.request_id,
            "gen_ai.request.choice.count": checked.n,
            "gen_ai.request.max_tokens": checked.max_tokens,
            "gen_ai.request.temperature": checked.temperature,
            "gen_ai.request.top_p": checked.top_p,
            "gen_ai.request.top_k": checked.top_k,
            "gen_ai.request.frequency_penalty": checked.frequency_penalty,
            "gen_ai.request.presence_penalty": checked.presence_penalty,
            "gen_ai.usage.input_tokens": record.prompt_len,
            "octavo.request_id": record.request_id,
            "octavo.priority": checked.priority,
        }
        for name, value in asked.items():
            if value is not None:
                self.span.set_attribute(name, value)

    def refused(self, error: OctavoError, now: float) -> None:
        """The request was never run."""
        self._tracing.end(self.span, now, error.reason)

    def cut(self, now: float) -> None:
        """The call ended before there was a request."""
        self._tracing.end(self.span, now, "cancelled")

    def in_step(self, step_id: int, epoch: int) -> None:
        """A step works on this request."""
        if not self._steps:
            self.span.set_attributes({"octavo.first_step_id": step_id, "octavo.epoch": epoch_text(epoch)})
        self._steps += 1

    def sequence_ended(self, index: int, outcome: str, end: Finished) -> None:
        """One of the request's sequences is over."""
        self._reasons[index] = outcome
        if not index:
            cached = end.cached_prompt_tokens
            self.span.set_attribute("gen_ai.usage.cache_read.input_tokens", cached)
            self.span.set_attribute("octavo.preemptions", end.preemptions)

    def ended(self, record: Record, now: float) -> None:
        """The request is over."""
        reasons = tuple(self._reasons[index] for index in sorted(self._reasons))
        self.span.set_attribute("gen_ai.response.finish_reasons", reasons)
        self.span.set_attribute("gen_ai.usage.output_tokens", record.output_len)
        self.span.set_attribute("octavo.steps", self._steps)
        if record.first_token_at is not None:
            self.span.set_attribute(
                "gen_ai.response.time_to_first_chunk", record.first_token_at - record.arrival
            )
        times = (record.arrival, record.admitted_at, record.first_token_at, now)
        for name, began, over in zip(("queue", "prefill", "decode"), times, times[1:], strict=False):
            if began is not None:
                phase = self._tracing.span(name, SpanKind.INTERNAL, self.span, began, {})
                self._tracing.end(phase, now if over is None else over)
        good = record.outcome in ("stop", "length")
        self._tracing.end(self.span, now, "" if good else record.outcome)


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The span of a step, from its plan's departure to its answer."""

    tracing: Tracing
    span: Span

    def answered(self, decoded: DecodedResult, now: float) -> None:
        self.span.set_attribute("octavo.forward_seconds", decoded.forward_seconds)
        self.span.set_attribute("octavo.gap_seconds", decoded.gap_seconds)
        self.tracing.end(self.span, now, decoded.failure_reason)

    def lost(self, now: float) -> None:
        """The session ended before the answer."""
        self.tracing.end(self.span, now, "WORKER_LOST")


class StepTracer:
    """The steps of one session: which of them work on requests whose spans are recorded.

    find: a live sequence by its id.
    """

    def __init__(self, tracing: Tracing, epoch: int, find: Callable[[int], Branch | None]) -> None:
        self._tracing = tracing
        self._epoch = epoch
        self._find = find
        self._rows: dict[int, RequestTrace] = {}

    def sent(self, plan: StepPlan, step_id: int, now: float) -> tuple[StepTrace | None, str]:
        """The step's span and its traceparent; (None, "") when it works on no recorded request.

        The span lies in the trace of the first such request and is linked to the others.
        """
        for row in plan.released_rows.tolist():
            self._rows.pop(row, None)
        for setup in plan.setups:
            branch = self._find(setup.seq_id)
            trace = branch.record.trace if branch is not None else None
            if trace is not None and trace.recorded:
                self._rows[setup.row] = trace
        found = {id(trace): trace for row in plan.rows.tolist() if (trace := self._rows.get(row))}
        traces = list(found.values())
        if not traces:
            return None, ""
        for trace in traces:
            trace.in_step(step_id, self._epoch)
        span = self._tracing.span(
            "step",
            SpanKind.CLIENT,
            traces[0].span,
            now,
            {
                "octavo.step_id": step_id,
                "octavo.epoch": epoch_text(self._epoch),
                "octavo.rows": int(plan.rows.size),
                "octavo.tokens": int(plan.input_ids.size),
            },
            [trace.span for trace in traces[1:]],
        )
        return StepTrace(self._tracing, span), traceparent_of(span)

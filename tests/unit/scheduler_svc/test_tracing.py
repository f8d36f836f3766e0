"""Spans of requests and steps from a real engine; and that a service which does not trace pays nothing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from octavo.trace_context import current_traceparent
from octavo.tracing import Tracing
from scheduler_svc.requests import Record
from scheduler_svc.tracing import RequestTrace, StepTracer
from tests.fixtures.programs import printed_by
from tests.unit.core.test_cost import no_collection
from tests.unit.scheduler_svc.engine_rig import EngineRig, engine_rig

CALLER = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
UNSAMPLED = CALLER[:-1] + "0"
TRACING_FILES = ("/tracing.py", "/trace_context.py", "/opentelemetry/")


class Traced:
    """An engine whose requests and steps are traced into memory."""

    def __init__(self, rig: EngineRig) -> None:
        self.rig = rig
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing("scheduler", "", lambda: rig.now, self.exporter)
        rig.tracer = StepTracer(self.tracing, 77, rig.engine.find_sequence)

    def submit(self, caller: str = CALLER, **fields: Any) -> Record:
        token = current_traceparent.set(caller)
        record = self.rig.record(**fields, trace=RequestTrace(self.tracing, self.rig.now))
        current_traceparent.reset(token)
        self.rig.engine.submit(record)
        return record

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture
async def traced() -> Any:
    async with engine_rig(connect=False) as rig:
        made = Traced(rig)
        await rig.connect()
        yield made


async def test_a_request_s_phases_lie_below_it_and_it_below_the_caller(traced: Traced) -> None:
    rig = traced.rig
    record = traced.submit(tokens=3)
    rig.now += 1.0
    await rig.settle()
    rig.now += 2.0
    await rig.answer_all()
    request = traced.one("generate")
    assert parent_of(request) == 0x0123456789ABCDEF
    assert request.context is not None
    assert request.context.trace_id == 0x0123456789ABCDEF0123456789ABCDEF
    attributes = attributes_of(request)
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert attributes["gen_ai.usage.output_tokens"] == 3
    assert attributes["octavo.steps"] == 3
    assert record.first_token_at is not None
    for name in ("queue", "prefill", "decode"):
        assert parent_of(traced.one(name)) == id_of(request)
    phases = [traced.one(name) for name in ("queue", "prefill", "decode")]
    assert [phase.start_time for phase in phases[1:]] == [phase.end_time for phase in phases[:-1]]
    assert phases[0].start_time == request.start_time
    assert phases[-1].end_time == request.end_time


async def test_each_step_says_which_it_is_and_its_plan_carries_its_context(traced: Traced) -> None:
    traced.submit(tokens=3)
    await traced.rig.settle()
    sent = list(traced.rig.plans)
    await traced.rig.answer_all()
    steps = traced.spans("step")
    assert [attributes_of(step)["octavo.step_id"] for step in steps] == [1, 2, 3]
    assert {attributes_of(step)["octavo.epoch"] for step in steps} == {f"{77:016x}"}
    assert {parent_of(step) for step in steps} == {id_of(traced.one("generate"))}
    told = [plan.traceparent.split("-")[2] for plan in sent]
    assert told == [f"{id_of(step):016x}" for step in steps[: len(sent)]]


async def test_a_step_of_two_requests_is_linked_to_the_second(traced: Traced) -> None:
    first, second = traced.submit(tokens=2), traced.submit(tokens=2)
    await traced.rig.settle()
    await traced.rig.answer_all()
    assert first.trace is not None
    assert second.trace is not None
    step = traced.spans("step")[0]
    assert parent_of(step) == first.trace.span.get_span_context().span_id
    assert [link.context.span_id for link in step.links] == [second.trace.span.get_span_context().span_id]


async def test_a_request_whose_caller_did_not_sample_leaves_no_span_and_no_word_on_the_wire(
    traced: Traced,
) -> None:
    traced.submit(UNSAMPLED, tokens=3)
    await traced.rig.settle()
    assert [plan.traceparent for plan in traced.rig.plans] != []
    assert {plan.traceparent for plan in traced.rig.plans} == {""}
    await traced.rig.answer_all()
    assert not traced.exporter.get_finished_spans()


async def test_steps_of_a_lost_worker_end_with_an_error(traced: Traced) -> None:
    traced.submit(tokens=3)
    await traced.rig.settle()
    await traced.rig.lose()
    lost = traced.spans("step")
    assert lost
    assert {attributes_of(step)["error.type"] for step in lost} == {"WORKER_LOST"}


async def test_an_aborted_and_a_refused_request_end_with_their_reason(traced: Traced) -> None:
    aborted = traced.submit(tokens=50)
    traced.submit(length=4, tokens=100_000)
    await traced.rig.settle()
    await traced.rig.engine.abort([aborted.request_id])
    await traced.rig.answer_all()
    spans = {attributes_of(span).get("error.type"): span for span in traced.spans("generate")}
    assert "aborted" in spans
    assert all(span.status.status_code is StatusCode.ERROR for span in spans.values())
    assert len(spans) == 2


@contextmanager
def calls_into_tracing() -> Iterator[list[str]]:
    """Every call of a function that lies in a module of tracing."""
    seen: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and any(name in frame.f_code.co_filename for name in TRACING_FILES):
            seen.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    before = sys.getprofile()
    with no_collection():  # of spans that earlier tests left behind
        sys.setprofile(note)
        try:
            yield seen
        finally:
            sys.setprofile(before)


@pytest.mark.parametrize("on", [False, True])
async def test_without_tracing_no_step_and_no_token_calls_it(on: bool) -> None:
    async with engine_rig(connect=False) as rig:
        traced = Traced(rig)
        if not on:
            rig.tracer = None
        await rig.connect()
        if on:
            traced.submit(tokens=20)
        else:
            rig.engine.submit(rig.record(tokens=20))
        with calls_into_tracing() as seen:
            await rig.settle()
            await rig.answer_all()
        assert bool(seen) is on  # the same look finds the calls of a service that does trace


@pytest.mark.parametrize("module", ["scheduler_svc.app", "gpu_worker.life", "gateway.server"])
def test_a_process_that_does_not_trace_imports_no_tracing_library(module: str) -> None:
    code = f"import sys, {module}; print(sorted(n for n in sys.modules if n.startswith('opentelemetry')))"
    assert printed_by(code) == "[]"

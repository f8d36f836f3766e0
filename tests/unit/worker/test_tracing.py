"""Spans of steps in a real worker on a CPU."""

from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gpu_worker.tracing import WorkerTracing
from octavo.tracing import Tracing
from octavo.worker.v1 import worker_pb2
from tests.fixtures.hand_plans import HandPlanner, HandSequence, to_message
from tests.unit.worker.live_worker import EPOCH, live_worker

CALLER = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def plans(count: int) -> list[worker_pb2.StepPlan]:
    planner, sequence = HandPlanner(64, 4), HandSequence(2, [5, 6, 7])
    return [to_message(planner.plan([(sequence, 1 if step else 3)]), 1, EPOCH) for step in range(count)]


async def spans_of(model: Path, messages: list[worker_pb2.StepPlan]) -> tuple[ReadableSpan, ...]:
    exporter = InMemorySpanExporter()
    tracing = WorkerTracing(Tracing("worker", "", exporter=exporter))
    async with live_worker(model, tracing=tracing) as worker:
        end = await worker.session(1)
        for message in messages:
            await end.ask(message)
    return exporter.get_finished_spans()


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_only_traced_steps_have_spans_below_the_scheduler_s(tiny_llama: Path) -> None:
    messages = plans(3)
    messages[1].traceparent = CALLER
    forward, step = await spans_of(tiny_llama, messages)
    assert (forward.name, step.name) == ("forward", "worker step")
    assert step.parent is not None
    assert step.parent.span_id == 0x0123456789ABCDEF
    assert attributes_of(step)["octavo.step_id"] == 2
    assert attributes_of(step)["octavo.epoch"] == f"{EPOCH:016x}"
    assert forward.parent is not None
    assert step.context is not None
    assert forward.parent.span_id == step.context.span_id


async def test_a_plan_that_is_refused_ends_its_span_with_the_reason(tiny_llama: Path) -> None:
    (message,) = plans(1)
    message.traceparent, message.step_id = CALLER, 9
    (step,) = await spans_of(tiny_llama, [message])
    assert attributes_of(step)["error.type"] == "invalid_plan"


async def test_a_malformed_context_makes_a_trace_of_its_own(tiny_llama: Path) -> None:
    (message,) = plans(1)
    message.traceparent = "nonsense"
    _, step = await spans_of(tiny_llama, [message])
    assert step.parent is None

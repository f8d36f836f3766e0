"""One request through gateway and scheduler as real processes, and what a collector gets to see of it."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from scheduler_svc.text import TextModel
from tests.e2e.collector import Collector, collector, values
from tests.e2e.gateway.door import Door, door_at
from tests.e2e.processes import Processes, ServiceProcess
from tests.e2e.rig import SchedulerSeat, rig_at, until

CALLER = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
SECRET = "xylophone"
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@dataclass
class Traced:
    door: Door
    collector: Collector
    scheduler: ServiceProcess

    async def wait_for(self, service: str, start: str) -> Span:
        """The first of a service's spans whose name starts so. Those that ended before it have come too."""

        def found() -> list[Span]:
            spans = self.collector.spans
            return [span for owner, span in spans if owner == service and span.name.startswith(start)]

        await until(lambda: bool(found()))
        return found()[0]

    def log_lines(self) -> list[dict[str, Any]]:
        """The scheduler's whole lines so far."""
        return [json.loads(line) for line in self.scheduler.err.read_text().split("\n")[:-1]]


@pytest.fixture
async def traced(processes: Processes, tiny_llama: Path, text: TextModel) -> AsyncIterator[Traced]:
    async with collector() as found:
        flag = ("--otlp-traces-endpoint", found.address)
        socket = f"unix:{processes.folder}/worker.sock"
        listen = ("--listen", "127.0.0.1:0", "--metrics-port", "0", "--log-level", "DEBUG")
        scheduler = processes.start(
            "scheduler",
            "scheduler_svc",
            "--model",
            str(tiny_llama),
            "--worker",
            socket,
            *listen,
            *flag,
            env=QUICK,
        )
        listen = ("--listen", "127.0.0.1:0")
        gateway = processes.start(
            "gateway", "gateway", "--server", scheduler.address, *listen, *flag, env=QUICK
        )
        async with (
            rig_at(SchedulerSeat(scheduler, socket)) as rig,
            door_at(gateway, rig, text) as door,
        ):
            yield Traced(door, found, scheduler)


async def test_one_request_is_one_trace_from_the_client_to_the_steps(traced: Traced) -> None:
    """And its spans, the plans at the worker and the log lines name the same request, steps and epoch."""
    body = {"prompt": f"Tell me {SECRET}", "max_tokens": 5, "temperature": 0.5, "ignore_eos": True}
    answer = await traced.door.post("/v1/completions", body, headers={"traceparent": CALLER})
    assert answer.status_code == 200
    http = await traced.wait_for("octavo-gateway", "POST /v1/completions")
    request = await traced.wait_for("octavo-scheduler", "text_completion ")  # the last to end
    scheduled = [span for owner, span in traced.collector.spans if owner == "octavo-scheduler"]
    steps = [span for span in scheduled if span.name == "step"]

    assert {span.trace_id.hex() for _, span in traced.collector.spans} == {CALLER.split("-")[1]}
    assert http.parent_span_id.hex() == CALLER.split("-")[2]
    assert request.parent_span_id == http.span_id
    assert {span.parent_span_id for span in scheduled if span is not request} == {request.span_id}
    assert {span.name for span in scheduled} == {request.name, "queue", "prefill", "decode", "step"}

    told = values(list(request.attributes))
    assert told["gen_ai.operation.name"] == "text_completion"
    assert told["gen_ai.request.max_tokens"] == 5
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.usage.output_tokens"] == 5
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert told["octavo.request_id"] == answer.headers["x-request-id"]
    assert values(list(http.attributes))["http.response.status_code"] == 200

    at_worker = [message.traceparent.split("-")[2] for message in traced.door.rig.fake.messages]
    assert at_worker == [span.span_id.hex() for span in steps]
    lines = traced.log_lines()
    of_request = [line for line in lines if line.get("request_id") == told["octavo.request_id"]]
    assert any("sequence 0 ended" in line["message"] for line in of_request)
    logged = {(line["step_id"], line["epoch"]) for line in lines if "step_id" in line}
    assert {(step["octavo.step_id"], step["octavo.epoch"]) for step in attributes_of(steps)} <= logged


def attributes_of(spans: list[Span]) -> list[dict[str, Any]]:
    return [values(list(span.attributes)) for span in spans]


async def test_no_span_holds_what_was_asked_or_answered(traced: Traced) -> None:
    """Whatever the field: the bytes of every span are searched, for texts and for lists of token ids."""
    wanted = traced.door.script("the harpsichord", f"Tell me {SECRET}")
    body = {
        "prompt": f"Tell me {SECRET}",
        "max_tokens": len(wanted),
        "stop": ["glockenspiel"],
        "user": "marimba",
    }
    answer = await traced.door.post("/v1/completions", {**body, "ignore_eos": True})
    assert "harpsichord" in answer.json()["choices"][0]["text"]
    await traced.wait_for("octavo-scheduler", "text_completion ")  # the last to end
    sent = b"".join(span.SerializeToString() for _, span in traced.collector.spans)
    assert b"gen_ai.usage.output_tokens" in sent
    for word in (SECRET, "harpsichord", "glockenspiel", "marimba"):
        assert word.encode() not in sent
    for _, span in traced.collector.spans:
        assert not any(pair.value.HasField("array_value") and "token" in pair.key for pair in span.attributes)


async def test_a_refused_request_ends_with_its_reason_and_not_with_its_words(traced: Traced) -> None:
    answer = await traced.door.post("/v1/completions", {"prompt": f"{SECRET} " * 5000, "max_tokens": 5})
    assert answer.status_code == 400
    await until(lambda: any(owner == "octavo-scheduler" for owner, _ in traced.collector.spans))
    (span,) = (span for owner, span in traced.collector.spans if owner == "octavo-scheduler")
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert values(list(span.attributes))["error.type"]
    assert SECRET.encode() not in span.SerializeToString()

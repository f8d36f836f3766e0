"""`octavo serve` with tracing: spans of a real worker lie in the trace of the scheduler and the gateway."""

import asyncio
from pathlib import Path

import httpx2

from tests.e2e.collector import collector, values
from tests.e2e.processes import Processes
from tests.e2e.service import Service

CALLER = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


async def test_three_processes_make_one_trace_and_send_the_rest_when_they_stop(
    processes: Processes, tiny_llama: Path
) -> None:
    async with collector() as found:
        flags = ("--http", "0", "--max-model-len", "256", "--otlp-traces-endpoint", found.address)
        served = await asyncio.to_thread(processes.serve, tiny_llama, *flags)
        scheduler = str(served.serving["listen"])
        gateway = (await asyncio.to_thread(served.wait_serving, "gateway")).serving
        async with Service(scheduler) as service, httpx2.AsyncClient(timeout=60) as http:
            await service.wait_ready(timeout=60)
            answer = await http.post(
                f"http://{gateway['listen']}/v1/completions",
                json={"prompt": "Tell me", "max_tokens": 4, "ignore_eos": True},
                headers={"traceparent": CALLER},
            )
        assert answer.status_code == 200
        assert await asyncio.to_thread(served.stop, 60) == 0
        assert {span.trace_id.hex() for _, span in found.spans} == {CALLER.split("-")[1]}
        steps = found.named("octavo-scheduler", "step")
        at_worker = found.named("octavo-worker", "worker step")
        assert len(steps) == len(at_worker) == 4
        assert {span.parent_span_id for span in at_worker} == {span.span_id for span in steps}
        numbers = [
            [values(list(span.attributes))["octavo.step_id"] for span in side] for side in (steps, at_worker)
        ]
        assert sorted(numbers[0]) == sorted(numbers[1])
        assert len(found.named("octavo-worker", "forward")) == 4
        assert len(found.named("octavo-gateway", "POST /v1/completions")) == 1

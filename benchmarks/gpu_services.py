"""Two ways to run a load: through both services over gRPC, and the same core and worker in one process.

Owns the starting and stopping of processes and the timing of a load; knows no table. Invariant: both ways
plan with the same core and launch on the same runner, so that their ratio is the cost of the split.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from benchmarks.gpu_loads import Load
from gpu_worker.model_runner import ModelRunner, PendingStep
from gpu_worker.wire import decode_plan
from octavo.worker.v1 import worker_pb2
from octavo_client import Client
from octavo_client.types import Delta, GenerateOptions, Request, RequestFailed
from scheduler_svc.core.plan import Capacity, NewRequest, SamplingParams, SeqId, StepPlan, StepResult
from scheduler_svc.core.scheduler import Scheduler, SchedulerConfig
from scheduler_svc.wire import encode_plan


class Services:
    """A worker and a scheduler as processes, and a client. `start_seconds`: to the first token."""

    def __init__(self, model: str, worker_flags: Sequence[str], scheduler_flags: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory()
        socket = f"unix:{self._folder.name}/worker.sock"
        started = time.perf_counter()
        self.logs = {name: Path(self._folder.name) / f"{name}.log" for name in ("worker", "scheduler")}
        worker = ["gpu_worker", "--model", model, "--listen", socket, "--metrics-port", "0", *worker_flags]
        scheduler = ["scheduler_svc", "--model", model, "--worker", socket, "--listen", "127.0.0.1:0"]
        self._processes = [
            self._start("worker", worker),
            self._start("scheduler", [*scheduler, "--metrics-port", "0", *scheduler_flags]),
        ]
        self._metrics_port = self._serving(0)["metrics_port"]
        self.client = Client(self._serving(1)["listen"])
        self.client.wait_ready(120)
        self.ready_seconds = time.perf_counter() - started
        self.run(Load([[5, 6, 7]], [1]), 0.0)
        self.start_seconds = time.perf_counter() - started

    def _start(self, name: str, arguments: list[str]) -> "subprocess.Popen[str]":
        with self.logs[name].open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=log, text=True
            )

    def _serving(self, number: int) -> dict[str, Any]:
        out = self._processes[number].stdout
        assert out is not None
        line = out.readline()
        if not line:
            raise RuntimeError(list(self.logs.values())[number].read_text()[-2000:])
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, load: Load, temperature: float) -> float:
        """Seconds until all requests of the load are answered, sent at once on one stream."""
        options = [
            GenerateOptions(
                temperature=temperature, max_tokens=count, ignore_eos=True, token_ids_only=True, seed=number
            )
            for number, count in enumerate(load.outputs)
        ]
        requests = [
            Request(token_ids=prompt, options=given, request_id=f"r{number}")
            for number, (prompt, given) in enumerate(zip(load.prompts, options, strict=True))
        ]
        started, tokens = time.perf_counter(), 0
        for _, event in self.client.batch(requests, max_in_flight=len(requests)):
            if isinstance(event, Delta):
                tokens += len(event.token_ids)
            elif isinstance(event, RequestFailed):
                raise event.error
        seconds = time.perf_counter() - started
        assert tokens == sum(load.outputs), (tokens, sum(load.outputs))
        return seconds

    def first_token(self, prompt: list[int]) -> float:
        """Seconds from the call of one streamed request to its first token."""
        started = time.perf_counter()
        stream = self.client.stream(
            token_ids=prompt, max_tokens=1, ignore_eos=True, temperature=0.6, token_ids_only=True
        )
        seconds = 0.0
        for event in stream:
            if isinstance(event, Delta) and not seconds:
                seconds = time.perf_counter() - started
        return seconds

    def histogram(self, name: str) -> tuple[dict[float, float], float]:
        """Cumulative counts by upper bound, and the sum, of one of the worker's histograms."""
        page = urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics").read().decode()
        counts, total = {}, 0.0
        for line in page.splitlines():
            if line.startswith(f"{name}_bucket{{"):
                counts[float(line.split('le="')[1].split('"')[0])] = float(line.rsplit(" ", 1)[1])
            elif line.startswith(f"{name}_sum "):
                total = float(line.rsplit(" ", 1)[1])
        return counts, total

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(20)


class InProcess:
    """The core and a runner in this thread, two steps in flight, plans through the wire's encoding."""

    def __init__(self, runner: ModelRunner, depth: int = 2) -> None:
        limits = runner.rows.limits
        self._runner = runner
        self._capacity = Capacity(
            epoch=1,  # type: ignore[arg-type]
            model_fingerprint="",
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            max_batch_tokens=limits.max_batch_tokens,
            max_batch_seqs=limits.max_batch_seqs,
            max_model_len=limits.max_model_len,
        )
        self._depth = depth

    def run(self, load: Load, temperature: float) -> float:
        """Seconds until the load is done."""
        core = Scheduler(SchedulerConfig(depth=self._depth))
        core.worker_ready(self._capacity)
        self._runner.reset()
        started = time.perf_counter()
        for number, (prompt, count) in enumerate(zip(load.prompts, load.outputs, strict=True)):
            sampling = SamplingParams(temperature=temperature, seed=number)
            request = NewRequest(SeqId(number), np.asarray(prompt, np.int32), count, sampling=sampling)
            assert core.add(request, 0.0) is None
        in_flight: deque[tuple[StepPlan, PendingStep]] = deque()
        previous: StepPlan | None = None
        rows = np.empty(0, np.int32)
        while core.has_work() or in_flight:
            while (plan := core.schedule(0.0)) is not None:
                message = worker_pb2.StepPlan.FromString(encode_plan(plan, previous).SerializeToString())
                decoded = decode_plan(message, rows)
                in_flight.append((plan, self._runner.launch(decoded)))
                previous, rows = plan, decoded.rows
            plan, pending = in_flight.popleft()
            core.apply(StepResult(plan.step_id, pending.wait().token_ids), 0.0)
            core.take_notices()
        return time.perf_counter() - started

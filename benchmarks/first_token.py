"""Where the time to a first token goes: `python -m benchmarks.first_token --model DIR [worker flags]`.

Owns the requests, the chain of stages and the table; knows no kernel. Invariant: one request at a time on an
idle service, over gRPC, and each stage is the median over all requests of the time from one border of the
chain to the next, so the stages of a length add up to about its time to first token.

Prints for each prompt length: milliseconds without clocks in the services (p50, and what the device took of
it), then the chain with the clocks of `first_token_marks`, and how often the threads of each process went to
sleep for one request.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import first_token_marks
from benchmarks.gpu_services import Services
from octavo_client.types import Delta

_CLIENT = ("called", "sent", "accepted here", "token here")


class Traced(Services):
    """Services with clocks, whose marks lie in `folder` when they have ended."""

    def __init__(self, model: str, worker_flags: Sequence[str], folder: Path | None) -> None:
        self._marks = folder
        super().__init__(model, worker_flags)

    @property
    def pids(self) -> dict[str, int]:
        """Of every process of the chain."""
        worker, scheduler = self._processes
        return {"client": os.getpid(), "scheduler": scheduler.pid, "worker": worker.pid}

    def _start(self, name: str, arguments: list[str]) -> "subprocess.Popen[str]":
        if self._marks is None:
            return super()._start(name, arguments)
        command = [sys.executable, "-m", "benchmarks.first_token_marks", *arguments]
        environment = os.environ | {first_token_marks.FOLDER: str(self._marks)}
        with self.logs[name].open("w") as log:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)

    def chain(self, prompt: list[int]) -> list[tuple[str, int]]:
        """The client's own borders of one request, in nanoseconds."""
        marks = [("called", time.monotonic_ns())]
        stream = self.client.stream(
            token_ids=prompt, max_tokens=1, ignore_eos=True, temperature=0.6, token_ids_only=True
        )
        marks.append(("sent", time.monotonic_ns()))
        for event in stream:
            token = isinstance(event, Delta)
            if token or len(marks) == 2:
                marks.append(("token here" if token else "accepted here", time.monotonic_ns()))
        return marks


def sleeps(pid: int) -> int:
    """How often threads of a process have waited so far."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def cpu_ms(pid: int) -> float:
    """Processor time of a process's threads so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e6


def prompts(length: int, count: int, vocab: int) -> list[list[int]]:
    rng = random.Random(length)
    return [[rng.randint(3, vocab - 1) for _ in range(length)] for _ in range(count)]


def untraced(options: argparse.Namespace, flags: list[str]) -> None:
    """Times, sleeps and processor time of a request without clocks."""
    with Traced(options.model, flags, None) as services:
        for length in options.lengths:
            warm, *drawn = prompts(length, options.requests + 1, options.vocab)
            services.chain(warm)
            name = "octavo_step_forward_seconds"
            (counts, total), before = services.histogram(name), _usage(services)
            times = [_milliseconds(services, prompt, options.pause) for prompt in drawn]
            after, (later, end) = _usage(services), services.histogram(name)
            steps = later[float("inf")] - counts[float("inf")]
            device = (end - total) / max(steps, 1) * 1e3
            p50, (low, _, high) = statistics.median(times), statistics.quantiles(times, n=4)
            spread = f"{low:.2f}..{high:.2f}, least {min(times):.2f}"
            print(f"{length} tokens: first token p50 {p50:.2f} ms ({spread}), device {device:.2f}")
            for who, (count, cpu) in after.items():
                slept, used = (count - before[who][0]) / len(drawn), (cpu - before[who][1]) / len(drawn)
                print(f"  a request: {who} {slept:.1f} sleeps, {used:.2f} ms of processor time")


def _milliseconds(services: Traced, prompt: list[int], pause: float) -> float:
    """From the call of one request to its token."""
    time.sleep(pause)
    marks = dict(services.chain(prompt))
    return (marks["token here"] - marks["called"]) / 1e6


def _usage(services: Traced) -> dict[str, tuple[float, float]]:
    return {who: (sleeps(pid), cpu_ms(pid)) for who, pid in services.pids.items()}


def traced(options: argparse.Namespace, flags: list[str]) -> None:
    """The chain, by length."""
    chains: dict[int, list[list[tuple[str, int]]]] = {}
    with tempfile.TemporaryDirectory() as name:
        with Traced(options.model, flags, Path(name)) as services:
            for length in options.lengths:
                warm, *drawn = prompts(length, options.requests + 1, options.vocab)
                services.chain(warm)
                for prompt in drawn:
                    time.sleep(options.pause)
                    chains.setdefault(length, []).append(services.chain(prompt))
        marks = [mark for path in Path(name).glob("*.json") for mark in json.loads(path.read_text())]
    for length, requests in chains.items():
        print(f"-- {length} tokens, {len(requests)} requests, us since the call and since the border before")
        table(requests, sorted(((at, border) for border, at in marks)))


def table(requests: list[list[tuple[str, int]]], marks: list[tuple[int, str]]) -> None:
    """Medians over the requests of each border's first time in the request (the token's: its last)."""
    found: dict[str, list[float]] = {}
    for own in requests:
        start, end = own[0][1], dict(own)["token here"]
        inside = {border: at for at, border in reversed(marks) if start <= at <= end}
        late = {border: at for at, border in marks if start <= at <= end}
        for border in ("token handed out", "token taken"):
            inside[border] = late.get(border, end)
        for border, at in [*inside.items(), *own]:
            found.setdefault(border, []).append((at - start) / 1e3)
    last = 0.0
    for middle, border in sorted((statistics.median(times), border) for border, times in found.items()):
        if len(found[border]) > len(requests) / 2:
            mark = "  " if border in _CLIENT else "    "
            print(f"{middle:10.0f} {middle - last:+8.0f} {mark}{border}")
            last = middle


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the time to a first token goes.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2, 2048])
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--vocab", type=int, default=10_000, help="prompts are drawn below it")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between requests")
    parser.add_argument("--no-chain", action="store_true", help="only the times without clocks")
    options, flags = parser.parse_known_args()
    untraced(options, flags)
    if not options.no_chain:
        traced(options, flags)


if __name__ == "__main__":
    main()

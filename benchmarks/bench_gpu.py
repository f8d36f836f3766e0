"""Serving speed on one GPU: `python -m benchmarks.bench_gpu --shape qwen3-0.6b --out FILE`.

Owns the order of the engines; knows neither kernels nor the wire. Invariant: engines take turns on one
machine in one go; Octavo's first start is thrown away but for its own time, vLLM starts once a round.

    --vllm PATHS     run vLLM beside it: what PYTHONPATH needs for vLLM, joined by colons
    --rounds N       turns of each engine; figures are the medians over them

Rows of several shapes are merged into one file, measured at one commit. Octavo runs as two processes over
gRPC; the last part repeats load A in one process, for the ratio.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_loads import BATCHES, COLD, LOAD_A, SHAPES, SPLIT, WARM, gap_name, load_a, write_model
from benchmarks.gpu_measures import LOADS, Note, measure, rate_a
from benchmarks.gpu_report import Report, this_commit, this_machine

Observed = tuple[dict[float, float], float]
"""Of a histogram: cumulative counts by upper bound, and the sum."""
WORKER_FLAGS = ("--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len", "4096")


def octavo_start(model: Path, options: argparse.Namespace, report: Report) -> None:
    """A start that counts for its time only: kernels are compiled and the machine wakes up."""
    from benchmarks.gpu_services import Services

    with Services(str(model), [*WORKER_FLAGS, *options.worker_flags]) as services:
        report.add("octavo", {COLD: services.start_seconds})
        report.note("octavo first start", {"load_a_s": services.run(load_a(0), 0.6)})


def octavo_round(model: Path, options: argparse.Namespace, report: Report) -> None:
    from benchmarks.gpu_services import Services

    with Services(str(model), [*WORKER_FLAGS, *options.worker_flags]) as services:
        try:
            steps = StepTimes(services, _named(report, "octavo"))
            rows = measure(services, options.repeats, steps.note, options.loads)
            report.add("octavo", {WARM: services.start_seconds} | rows | steps.found)
        finally:
            for name, path in services.logs.items():
                print(f"-- {name}\n{path.read_text()[-options.log_characters :]}")


class StepTimes:
    """Reads the worker's histograms of steps after each load: what its steps took and what lay between them,
    over all runs of the load, is noted beside it.
    """

    def __init__(self, services: Any, note: Note) -> None:
        self._services, self._note = services, note
        self._gaps, self._forwards = self._read()
        self.found: dict[str, float] = {}

    def _read(self) -> tuple[Observed, Observed]:
        read = self._services.histogram
        return read("octavo_step_gap_seconds"), read("octavo_step_forward_seconds")

    def note(self, name: str, value: object) -> None:
        (gaps, gap_sum), (forwards, forward_sum) = self._read()
        before, gap_sum_before = self._gaps
        rows = {f"decode {count}": count for count in BATCHES}.get(name)
        if rows is not None:
            self.found[gap_name(rows)] = median_of(before, gaps)
        steps = {
            "steps": int(gaps[float("inf")] - before[float("inf")]),
            "forward_s": round(forward_sum - self._forwards[1], 4),
            "gap_s": round(gap_sum - gap_sum_before, 4),
            "gap_p99_us": quantile_of(before, gaps, 0.99),
        }
        self._gaps, self._forwards = (gaps, gap_sum), (forwards, forward_sum)
        self._note(name, value)
        self._note(f"{name} steps", steps)


def median_of(before: dict[float, float], after: dict[float, float]) -> float:
    """Median in microseconds of what a histogram took in between."""
    return quantile_of(before, after, 0.5)


def quantile_of(before: dict[float, float], after: dict[float, float], part: float) -> float:
    """Quantile in microseconds of what a histogram took in between, linear inside its bucket; of values past
    the last bound that bound.
    """
    counts = {bound: after[bound] - before[bound] for bound in after}
    wanted, low, below = counts[float("inf")] * part, 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= wanted and bound == float("inf"):
            return low * 1e6
        if count >= wanted:
            return round((low + (bound - low) * (wanted - below) / max(count - below, 1)) * 1e6, 1)
        low, below = bound, count
    return float("nan")


def vllm(model: Path, options: argparse.Namespace, report: Report, is_first: bool) -> None:
    """vLLM in a process of its own. Its start is measured as Octavo's is: from the process to a token."""
    if not options.vllm:
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "vllm.json"
        command = [sys.executable, "-m", "benchmarks.gpu_vllm", "--model", str(model), "--out", str(out)]
        more = ["--repeats", str(options.repeats), "--loads", *options.loads]
        path = os.pathsep.join([options.vllm, os.environ.get("PYTHONPATH", "")])
        subprocess.run([*command, *more], check=True, env=os.environ | {"PYTHONPATH": path})
        found = json.loads(out.read_text())
    report.machine({"vllm": found["version"]})
    note = _named(report, "vllm")
    for name, value in found["runs"].items():
        note(name, value)
    report.add("vllm", {COLD if is_first else WARM: found["start_seconds"]} | found["rows"])


def _named(report: Report, engine: str) -> Note:
    return lambda name, value: report.note(f"{engine} {name}", value)


def in_process(options: argparse.Namespace) -> None:
    """Load A on the same core and runner without gRPC, in this process."""
    from benchmarks.gpu_services import InProcess
    from gpu_worker.config import read_settings
    from gpu_worker.loading import examine, load

    flags = ["--model", options.in_process, *WORKER_FLAGS, *options.worker_flags]
    settings = read_settings(flags)
    runs: dict[str, object] = {}
    engine = InProcess(load(examine(settings)).runner)
    rate = rate_a(engine, options.repeats, runs.__setitem__)
    options.out.write_text(json.dumps({"rate": rate, "runs": runs}))


def split_ratio(model: Path, options: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "in_process.json"
        command = [sys.executable, "-m", "benchmarks.bench_gpu", "--in-process", str(model)]
        command += ["--out", str(out), "--repeats", str(options.repeats)]
        subprocess.run([*command, f"--worker-flags={' '.join(options.worker_flags)}"], check=True)
        found = json.loads(out.read_text())
    report.note("octavo in process", found["runs"])
    report.add("octavo", {SPLIT: report.median("octavo", LOAD_A) / found["rate"]})


def main() -> None:
    parser = argparse.ArgumentParser(description="Serving speed on one GPU.")
    parser.add_argument("--shape", choices=SHAPES, default=SHAPES[0], help="weights are drawn")
    parser.add_argument("--tokenizer", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=2, help="of load A, after one that is thrown away")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument("--no-first-start", action="store_true", help="on a machine that has run it before")
    parser.add_argument("--vllm", default="", help="what PYTHONPATH needs for vLLM, joined by colons")
    parser.add_argument("--commit", default="")
    parser.add_argument("--worker-flags", type=str.split, default=[], help="in one string")
    parser.add_argument("--log-characters", type=int, default=1500)
    parser.add_argument("--in-process", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        in_process(options)
        return
    started = time.perf_counter()
    report = Report(options.out, options.shape, options.commit or this_commit())
    report.machine(this_machine())
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(options.shape, options.tokenizer, Path(folder) / options.shape)
        if not options.no_first_start:
            octavo_start(model, options, report)
        for number in range(options.rounds):
            octavo_round(model, options, report)
            vllm(model, options, report, is_first=not number and not options.no_first_start)
        if "A" in options.loads:
            split_ratio(model, options, report)
    report.note("seconds", round(time.perf_counter() - started, 1))
    report.print()


if __name__ == "__main__":
    main()

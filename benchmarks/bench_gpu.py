"""Serving speed on one GPU: `python -m benchmarks.bench_gpu --model DIR --out FILE`.

Owns the order of the parts (services first, then the same load in one process), the table and the result
file; knows neither kernels nor the wire. Invariant: the first run of a load is thrown away, every run is in
the report, and a number stands beside its floor and its target.
"""

import argparse
import importlib.metadata
import json
import platform
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_loads import MARKS, Load, Sizes, equal_load, load_a, sizes

WORKER_FLAGS = ("--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len", "4096")
BATCHES = (1, 32, 128, 256)


class Report:
    """Raw runs and the table's rows; the file is rewritten after each: a killed run keeps what it had."""

    def __init__(self, path: Path, commit: str) -> None:
        self._path = path
        self.data: dict[str, Any] = {"commit": commit, "machine": {}, "rows": [], "runs": {}}

    def runs(self, name: str, value: Any) -> None:
        self.data["runs"][name] = value
        self._save()
        print(name, json.dumps(value), flush=True)

    def row(self, name: str, value: float, floor: float | None = None) -> None:
        mark = MARKS[name]
        self.data["rows"].append(
            {
                "name": name,
                "octavo": round(value, 4),
                "vllm": mark.vllm,
                "floor": None if floor is None else round(floor, 4),
                "target": mark.target,
                "higher_is_better": mark.higher_is_better,
            }
        )
        self._save()

    def _save(self) -> None:
        self._path.write_text(json.dumps(self.data, indent=1) + "\n")

    def print(self) -> None:
        print(f"\n{'':<50}{'octavo':>10}{'vllm*':>10}{'floor':>10}{'target':>10}")
        for row in self.data["rows"]:
            cells = [row[key] for key in ("octavo", "vllm", "floor", "target")]
            better = (
                row["octavo"] >= row["target"] if row["higher_is_better"] else row["octavo"] <= row["target"]
            )
            text = "".join(f"{'-' if cell is None else f'{cell:.4g}':>10}" for cell in cells)
            print(f"{row['name']:<50}{text}  {'met' if better else 'MISSED'}")
        print("* another run, 2026-11-30, vLLM 0.25.1 offline; see MARKS in benchmarks/gpu_loads.py")


def run_load_a(driver: Any, report: Report, name: str, repeats: int) -> float:
    """Output tokens a second, the median of the runs after the first."""
    seconds = [driver.run(load_a(repeat), 0.6) for repeat in range(repeats + 1)]
    rate = sum(load_a(0).outputs) / statistics.median(seconds[1:])
    report.runs(f"load A {name}", {"seconds": [round(s, 3) for s in seconds], "tok_s": round(rate)})
    return rate


def decode_table(services: Any, report: Report, model: Sizes) -> None:
    """(time of 256 outputs - time of 128) / 128 from prompts of 832 tokens, as the peers are measured."""
    rng = random.Random(1)
    for rows in BATCHES:
        services.run(equal_load(rng, rows, 832, 8), 0.6)
        low, high = [], []
        before = services.histogram("octavo_step_gap_seconds")
        for _ in range(2 if rows > 32 else 3):
            low.append(services.run(equal_load(rng, rows, 832, 128), 0.6))
            high.append(services.run(equal_load(rng, rows, 832, 256), 0.6))
        gap = median_of(before[0], services.histogram("octavo_step_gap_seconds")[0])
        step = (statistics.median(high) - statistics.median(low)) / 128 * 1e3
        report.runs(
            f"decode {rows}", {"step_ms": round(step, 3), "low_s": low, "high_s": high, "gap_us": gap}
        )
        noun = "row" if rows == 1 else "rows"
        report.row(f"decode step ms, {rows} {noun}", step, model.decode_floor_ms(rows, 832 + 192))
        report.row(f"step gap p50 us, {rows} {noun}", gap)


def median_of(before: dict[float, float], after: dict[float, float]) -> float:
    """Median in microseconds of what a histogram took in between, linear inside its bucket."""
    counts = {bound: after[bound] - before[bound] for bound in after}
    half, low, below = counts[float("inf")] / 2, 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= half:
            return round((low + (bound - low) * (half - below) / max(count - below, 1)) * 1e6, 1)
        low, below = bound, count
    return float("nan")


def first_tokens(services: Any, report: Report) -> None:
    rng = random.Random(2)
    times = [services.first_token([rng.randint(0, 10000) for _ in range(2048)]) * 1e3 for _ in range(12)][2:]
    short = [services.first_token([3, 4]) * 1e3 for _ in range(12)][2:]
    report.runs("load C", {"ms": [round(t, 2) for t in times], "two_tokens_ms": [round(t, 2) for t in short]})
    report.row("load C, time to first token of 2048 tokens, ms", statistics.median(times), 2.3)


def shared_prefix(services: Any, report: Report) -> None:
    """64 requests with a new common prefix of 2048 tokens, then others with the same prefix."""
    rng, new, seen = random.Random(3), [], []
    for _ in range(4):
        load = equal_load(rng, 64, 2112, 32, shared=2048)
        new.append(services.run(load, 0.6))
        again = [prompt[:2048] + [rng.randint(0, 10000) for _ in range(64)] for prompt in load.prompts]
        seen.append(services.run(Load(again, load.outputs), 0.6))
    report.runs("load D", {"new_prefix_s": new, "seen_prefix_s": seen})
    report.row("load D, seconds", statistics.median(new[1:]))


def in_process(options: argparse.Namespace) -> None:
    """The part that runs in a process of its own: load A on the same core and runner, without gRPC."""
    from benchmarks.gpu_services import InProcess
    from gpu_worker.config import Settings
    from gpu_worker.loading import examine, load

    settings = Settings(_cli_parse_args=["--model", options.model, *WORKER_FLAGS])  # type: ignore[call-arg]
    report = Report(options.out, "")
    rate = run_load_a(InProcess(load(examine(settings)).runner), report, "in process", options.repeats)
    report.runs("rate", rate)


def over_grpc(options: argparse.Namespace, report: Report, model: Sizes) -> float:
    from benchmarks.gpu_services import Services

    with Services(options.model, [*WORKER_FLAGS, *options.worker_flags]) as services:
        try:
            report.row("start to first token, s", services.start_seconds)
            report.data["machine"] = machine()
            rate = run_load_a(services, report, "over gRPC", options.repeats)
            report.row("load A, output tok/s", rate)
            first_tokens(services, report)
            shared_prefix(services, report)
            decode_table(services, report, model)
        finally:
            for name, path in services.logs.items():
                print(f"-- {name}\n{path.read_text()[-options.log_characters :]}")
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description="Serving speed on one GPU.")
    parser.add_argument("--model", required=True, help="model folder; weights are drawn")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--commit", default="")
    parser.add_argument("--worker-flags", nargs="*", default=[])
    parser.add_argument("--log-characters", type=int, default=1500)
    parser.add_argument("--in-process", action="store_true", help="only load A, in this process")
    options = parser.parse_args()
    if options.in_process:
        in_process(options)
        return
    started = time.perf_counter()
    report = Report(options.out, options.commit or commit())
    model = sizes(json.loads((Path(options.model) / "config.json").read_text()))
    rate = over_grpc(options, report, model)
    part = options.out.with_suffix(".in_process.json")
    command = [sys.executable, "-m", "benchmarks.bench_gpu", "--model", options.model, "--in-process"]
    subprocess.run([*command, "--out", str(part), "--repeats", str(options.repeats)], check=True)
    runs = json.loads(part.read_text())["runs"]
    part.unlink()
    report.runs("load A in process", runs["load A in process"])
    report.row("throughput over gRPC to in process", rate / runs["rate"])
    report.data["seconds"] = round(time.perf_counter() - started, 1)
    report.print()


def machine() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton", "grpcio")}
    return {"device": done.stdout.strip(), "python": platform.python_version(), **versions}


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()

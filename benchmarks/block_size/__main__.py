"""The block-size study: `python -m benchmarks.block_size [--traces DIR] [--quick]`, `make study-block-size`.

Owns the order of the parts and the result file; what is measured is in the modules beside it, how it is shown
in `page`. Invariant: every part sees every block size, and docs/block-size.md shows what the result file
holds.
"""

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.block_size import costs, cpu_step, page, traffic
from benchmarks.block_size.traffic import Note
from scheduler_svc.simulate.trace import Trace

SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
POOL_TOKENS = 131_072
LIMITS = (16_384, 40_960)
BASELINE_SIZES = (16, 256)
PARTS = ("waste", "hit_rate", "contiguous", "costs", "cpu_step")


def main() -> None:
    parser = argparse.ArgumentParser(description="The block-size study.")
    parser.add_argument("--traces", type=Path, help="folder with the whole traces; else the excerpts")
    parser.add_argument("--runs", type=int, default=10, help="runs of which a time is the least")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="renew only these")
    parser.add_argument("--out", type=Path, default=page.RESULTS)
    parser.add_argument("--no-page", action="store_true", help="leave docs/block-size.md as it is")
    options = parser.parse_args()
    started = time.perf_counter()
    results = json.loads(options.out.read_text()) if set(options.parts) != set(PARTS) else {}
    with _progress() as note:
        for part in options.parts:
            results |= study(part, options.traces, options.runs, note)
            results["measured_at"] = results.get("measured_at", {}) | {part: _measured_at()}
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    if not options.no_page:
        page.write(results, page.gpu_results())
    Console().print(f"{options.out} after {time.perf_counter() - started:.0f} s")


def study(part: str, folder: Path | None, runs: int, note: Note) -> dict[str, object]:
    """One part's results, by name."""
    match part:
        case "waste":
            traces = {name: traffic.load(name, folder) for name in ("azure", "sessions")}
            waste = {name: traffic.fragmentation(name, trace, SIZES, note) for name, trace in traces.items()}
            return {"waste": waste, "waste_traces": _described(traces)}
        case "hit_rate":
            traces = {name: traffic.load(name, folder) for name in ("sessions", "weka", "mooncake")}
            rates = {name: traffic.hit_rates(name, trace, SIZES, note) for name, trace in traces.items()}
            return {"hit_rate": rates, "hit_rate_traces": _described(traces)}
        case "contiguous":
            azure = traffic.load("azure", folder)
            rows = traffic.baseline(azure, BASELINE_SIZES, POOL_TOKENS, LIMITS, note)
            return {"contiguous": rows, "contiguous_traces": _described({"azure": azure})}
        case "costs":
            return {
                "hash_one": costs.hash_of_one_block(runs),
                "hash": costs.hash_and_lookup(SIZES, runs, note),
                "scheduling": costs.scheduling(SIZES, runs, note),
            }
        case _:
            return {"cpu_step": cpu_step.decode_steps(SIZES, runs, note)}


def _described(traces: dict[str, Trace]) -> dict[str, str]:
    return {name: f"{trace.name}, {len(trace.requests):,} requests" for name, trace in traces.items()}


def _measured_at() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return f"{_processor()}, commit {commit}"


@contextmanager
def _progress() -> Iterator[Note]:
    console = Console(stderr=True)
    columns = (BarColumn(pulse_style="bar.pulse"), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def note(what: str) -> None:
            bar.update(task, description=what)
            if not console.is_terminal:
                console.print(what)

        yield note


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()


if __name__ == "__main__":
    main()

"""Cost of the scheduling core: a table, and as the last line one JSON object.

Owns what is measured and how it is shown; the loads are in `core_load`. Invariant: every figure is a minimum
over several runs of the same work, through the real core and the real wire encoding.

    python -m benchmarks.bench_core [--runs 20] [--quick]

plan: schedule, encode and serialise. step: plan, and taking in the older step's answer: tokens, stop checks,
block hashes, publishing. lookup: hashing 8192 tokens and finding all of their blocks, every token id
verified. Targets are for one quiet core; on a busy machine read the ratios.
"""

import argparse
import json
import subprocess
import sys
import time

import numpy as np
import psutil  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from benchmarks.core_load import BLOCK_SIZE, Load, Timings, best_of_each, drain, empty_core, fill_pool
from scheduler_svc.core.plan import NewRequest, SeqId, StepId

ROWS = (1, 64, 256, 1024)
PLAN_TARGETS = {1: 40, 64: 45, 256: 50, 1024: 100}
STEP_TARGETS = {1: 60, 64: 80, 256: 100, 1024: 250}
BYTES_TARGETS = {256: 4500, 1024: 18_000}
LOOKUP_TOKENS = 8192
MILLION = 1_000_000
MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="leave out the pools of a million blocks")
    parser.add_argument("--memory", choices=("empty", "full"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        print(measure_memory(arguments.memory == "full"))
        return
    report = Report()
    measure_steps(report, arguments.runs)
    measure_lookup(report, arguments.runs)
    measure_ratios(report, arguments.runs, arguments.quick)
    if not arguments.quick:
        report.add("mb_1m_blocks_empty", memory_in_own_process("empty"), 64, "MB")
        report.add("mb_1m_blocks_full", memory_in_own_process("full"), 250, "MB")
    report.show()


class Report:
    """The figures in order, each with its target where it has one."""

    def __init__(self) -> None:
        self._figures: list[tuple[str, float, float | None, str]] = []

    def add(self, name: str, value: float, target: float | None, unit: str) -> None:
        self._figures.append((name, round(float(value), 3 if unit == "x" else 1), target, unit))

    def show(self) -> None:
        table = Table("figure", "value", "target", "", title="Scheduling core, minimum of several runs")
        for name, value, target, unit in self._figures:
            verdict = "" if target is None else ("met" if value <= target else "MISSED")
            table.add_row(name, f"{value:g} {unit}", "" if target is None else f"<= {target:g}", verdict)
        Console(width=100).print(table)
        print(json.dumps({name: value for name, value, _, _ in self._figures}))


def measure_steps(report: Report, runs: int) -> None:
    evicting = Load(256, full=True)
    best = best_of_each([*map(Load, ROWS), evicting], runs)
    for rows in ROWS:
        times = best[Load(rows)]
        plan, step = times.schedule + times.encode, whole_step(times)
        report.add(f"plan_us_{rows}", plan.mean(), PLAN_TARGETS[rows], "us")
        report.add(f"step_us_{rows}", step.mean(), STEP_TARGETS[rows], "us")
        report.add(f"step_us_{rows}_worst", step.max(), None, "us")
        if rows in BYTES_TARGETS:
            report.add(f"plan_bytes_{rows}", times.plan_bytes, BYTES_TARGETS[rows], "bytes")
    report.add("step_us_256_full_pool", whole_step(best[evicting]).mean(), None, "us")


def measure_lookup(report: Report, runs: int) -> None:
    """A prompt whose blocks are all cached: hash it and match it, as the first `schedule` does."""
    core = empty_core(4000)
    prompt = np.random.default_rng(2).integers(0, 32_000, LOOKUP_TOKENS + 1, np.int32)
    core.add(NewRequest(SeqId(0), prompt, max_tokens=1), 0.0)
    drain(core)
    lifecycle = core._lifecycle
    session = lifecycle.session
    assert session is not None
    manager = session.manager
    best = float("inf")
    for i in range(1, 20 * runs):
        seq = lifecycle.add(NewRequest(SeqId(i), prompt, max_tokens=1), 0.0)
        start = time.perf_counter()
        hits = manager.match_prefix(seq, StepId(1 << 40)).blocks
        best = min(best, time.perf_counter() - start)
        assert len(hits) == LOOKUP_TOKENS // BLOCK_SIZE
    report.add("lookup_us_8192", best * 1e6, 350, "us")


def measure_ratios(report: Report, runs: int, quick: bool) -> None:
    if not quick:
        small, large = (Load(32, num_blocks=blocks) for blocks in (1000, MILLION))
        report.add("ratio_pool_1k_1m", ratio(small, large, min(runs, 10)), 1.2, "x")
        small, large = (Load(32, num_blocks=blocks, full=True) for blocks in (1000, MILLION))
        report.add("ratio_pool_1k_1m_full", ratio(small, large, min(runs, 3)), None, "x")
    few, many = (Load(256, waiting=waiting) for waiting in (100, 10_000))
    report.add("ratio_waiting_100_10k", ratio(few, many, runs), 1.5, "x")


def ratio(small: Load, large: Load, runs: int) -> float:
    """Whole step of the large load over that of the small one."""
    best = best_of_each([small, large], runs)
    return float(whole_step(best[large]).mean() / whole_step(best[small]).mean())


def whole_step(times: Timings) -> np.ndarray:
    whole: np.ndarray = times.schedule + times.encode + times.apply
    return whole


def memory_in_own_process(state: str) -> float:
    command = [sys.executable, "-m", "benchmarks.bench_core", "--memory", state]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_memory(full: bool) -> float:
    """Megabytes of resident memory that a core with a million blocks adds to this process."""
    resident = psutil.Process().memory_info
    warm = empty_core(100)
    fill_pool(warm, 100)
    before = resident().rss
    core = empty_core(MILLION)
    if full:
        fill_pool(core, MILLION)
        assert core.stats().prefix_entries == MILLION
    else:
        core.stats()
    return float(resident().rss - before) / MB


if __name__ == "__main__":
    main()

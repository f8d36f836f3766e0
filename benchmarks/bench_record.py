"""What recording costs a step: a table, and as the last line one JSON object.

Owns the comparison of a core that is recorded with one that is not; the loads are in `core_load`. Invariant:
both run the same steps in turns within one process, and every figure is a median.

    python -m benchmarks.bench_record [--rounds 30]

planning: `schedule` and the wire encoding, the time in which a plan is waited for; the cost is the median of
the differences of two steps that follow one another, one of each core. encode: what the recorder's thread
does for a step's notes, measured here by itself: digests, records, and the write. The engine's thread does
not wait for it, but shares Python's lock with it; so it is given in part of a whole step's time on one core.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.core_load import BLOCK_SIZE, Load, Steady
from scheduler_svc.core.plan import SchedulerConfig
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.recorder.recording import RecordedScheduler
from scheduler_svc.recorder.writer import Recorder

ROWS = (1, 64, 256, 1024)
STEPS = 2 * BLOCK_SIZE
TARGET = 0.03


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    figures = {rows: measure(rows, rounds) for rows in ROWS}
    table = Table("rows", "plan us", "added us", "cost", "<= 3 %", "encode us", "of a step", "bytes")
    for rows, found in figures.items():
        table.add_row(
            str(rows),
            f"{found['plan_us']:.1f}",
            f"{found['added_us']:.2f}",
            f"{100 * found['cost']:.2f} %",
            "met" if found["cost"] <= TARGET else "MISSED",
            f"{found['encode_us']:.1f}",
            f"{100 * found['encode_share']:.1f} %",
            f"{found['bytes']:.0f}",
        )
    Console(width=100).print(table)
    print(json.dumps(figures))


def measure(rows: int, rounds: int) -> dict[str, float]:
    """Medians over all steps, microseconds."""
    steps = 3 * BLOCK_SIZE + (rounds + 1) * STEPS
    load = Load(rows, num_blocks=1000 + rows * (steps // BLOCK_SIZE + 16))
    with tempfile.TemporaryDirectory() as folder:
        recorders: list[Recorder] = []

        def recorded(config: SchedulerConfig) -> Scheduler:
            recorders.append(Recorder(Path(folder) / "log", config))
            return RecordedScheduler(config, recorders[0].note)

        without, with_it = Steady(load), Steady(load, recorded)
        plain, added, whole = [], [], []
        for turn in range(
            rounds * STEPS
        ):  # the second of two steps finds warm caches, so each is it in turns
            first, second = (without, with_it) if turn % 2 else (with_it, without)
            times = {first: first.time_steps(1), second: second.time_steps(1)}
            one, other = times[without], times[with_it]
            plain.append(float(one.schedule[0] + one.encode[0]))
            added.append(float(other.schedule[0] + other.encode[0]) - plain[-1])
            whole.append(plain[-1] + float(one.apply[0]))
            if len(plain) % STEPS == 0:
                drain(recorders[0])
        encode_us, size = encoding(with_it, recorders[0])
        recorders[0].close()
    plan, more, step = map(statistics.median, (plain, added, whole))
    return {
        "plan_us": plan,
        "added_us": more,
        "cost": more / plan,
        "encode_us": encode_us,
        "encode_share": encode_us / step,
        "bytes": size,
    }


def drain(recorder: Recorder) -> None:
    """Waits until the thread has written all, so that a round does not pay for the one before."""
    while recorder._pending:
        time.sleep(0.001)
    gc.collect()


def encoding(steady: Steady, recorder: Recorder) -> tuple[float, float]:
    """(microseconds of processor time, bytes) that a step's notes take to be encoded and written."""
    entries: list[tuple[Any, ...]] = []
    core = steady.core
    assert isinstance(core, RecordedScheduler)
    core._note = entries.append
    steady.time_steps(STEPS)
    found, before = [], recorder.bytes
    for _ in range(30):
        start = time.thread_time()
        recorder._write(b"".join(map(recorder._encoded, entries)))
        found.append((time.thread_time() - start) / STEPS * 1e6)
    return statistics.median(found), (recorder.bytes - before) / 30 / STEPS


if __name__ == "__main__":
    main()

# mypy: disable-error-code="no-untyped-call"
"""Times single steps of a worker's runner on a CUDA device.

`python -m benchmarks.gpu_step --model DIR --out FILE`

Owns steady decode plans and prefills made from nothing (no prompt is computed: the pool holds what it holds),
and the profile by kernel; knows no scheduler. Invariant: every time is a median over repetitions, beside its
floor.
"""

import argparse
import json
import logging
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_report import this_commit
from gpu_worker.config import read_settings
from gpu_worker.loading import examine, load
from gpu_worker.model_runner import ModelRunner
from gpu_worker.models.registry import ModelConfig
from gpu_worker.wire import Int32Array, Plan, RowSetup, Sampling
from paged_kernels.triton_impl import fused_linear, machine, small_linear

NONE = np.empty(0, np.int32)
BANDWIDTH = 4.3e12


class SteadyPlans:
    """Plans of one session: `rows` sequences whose contexts grow by one token a step, from `context` on."""

    def __init__(self, runner: ModelRunner, rows: int, context: int, temperature: float) -> None:
        self.block_size = runner.pool.block_size
        self.rows = np.arange(rows, dtype=np.int32)
        self.contexts = np.full(rows, context, np.int32)
        self.step_id = 0
        self.sampling = Sampling(temperature, 1.0, 0, 0.0, 1)
        room = min(runner.rows.limits.max_model_len, context + 2000)
        width = -(-room // self.block_size)
        blocks = np.random.default_rng(0).permutation(runner.pool.num_blocks)[: rows * width]
        self.tables = blocks.reshape(rows, width).astype(np.int32)
        self.vocab_size = runner.decoder.config.vocab_size

    def _drawn(self, count: int) -> Int32Array:
        """Token ids. Of equal ones products draw less power, so the device keeps a higher clock."""
        return np.random.default_rng(1).integers(0, self.vocab_size, count, np.int32)

    def _setups(self) -> tuple[RowSetup, ...]:
        return tuple(RowSetup(int(row), int(self.contexts[row]), self.sampling) for row in self.rows)

    def next(self, query_len: int = 1) -> Plan:
        """The next step: one token a row, or at first whole prompts of query_len tokens."""
        self.step_id += 1
        first, count = self.step_id == 1, len(self.rows)
        if not first:
            self.contexts = self.contexts + 1
        held = -(-self.contexts // self.block_size)
        before = np.zeros_like(held) if first else -(-(self.contexts - 1) // self.block_size)
        grown = np.repeat(self.rows, held - before)
        spans = [np.arange(low, high) for low, high in zip(before, held, strict=True)]
        offsets = np.concatenate(spans).astype(np.int32)
        lens = np.full(count, query_len, np.int32)
        within = np.tile(np.arange(query_len), count)
        positions = (np.repeat(self.contexts - query_len, query_len) + within).astype(np.int32)
        tables, size = self.tables[np.repeat(self.rows, query_len)], self.block_size
        slots = tables[np.arange(len(positions)), positions // size] * size + positions % size
        return Plan(
            session_id=0, worker_epoch=0, step_id=self.step_id, base_step=self.step_id - 1,
            released_rows=NONE, setups=self._setups() if first else (),
            table_rows=grown.astype(np.int32), table_offsets=offsets,
            table_blocks=self.tables[grown, offsets],
            zero_blocks=NONE, copy_pairs=NONE.reshape(0, 2), rows=self.rows, query_lens=lens,
            context_lens=self.contexts,
            input_ids=self._drawn(count * query_len) if first else np.full(count * query_len, -1, np.int32),
            positions=positions,
            slot_mapping=slots.astype(np.int32), sample_positions=_ends(lens), sample_rows=self.rows,
        )  # fmt: skip


def _ends(lens: Int32Array) -> Int32Array:
    return (np.cumsum(lens) - 1).astype(np.int32)


def floor_ms(runner: ModelRunner, rows: int, context: int) -> float:
    """Weights that a decode step must read, in bf16, and its KV, as the pool holds it, over the bandwidth."""
    c, pool = runner.decoder.config, runner.pool
    layer = c.hidden_size * (c.q_size + 2 * c.kv_size) + c.q_size * c.hidden_size
    layer += 3 * c.hidden_size * _mlp_features(c, rows)
    weights = 2 * (c.num_layers * layer + c.vocab_size * c.hidden_size)
    slot_bytes = pool.tensor.nbytes / ((pool.num_blocks + 1) * pool.block_size)
    return (weights + rows * context * slot_bytes) / BANDWIDTH * 1e3


def _mlp_features(config: ModelConfig, rows: int) -> float:
    """Of the feed-forward weights that a layer reads; of experts those that rows choose, if at random."""
    experts = config.experts
    if experts is None:
        return config.intermediate_size
    unread = (1 - experts.chosen / experts.count) ** rows
    return experts.count * (1 - unread) * experts.size


def decode(runner: ModelRunner, rows: int, context: int, steps: int, temperature: float) -> dict[str, Any]:
    """One decode step: wall with two in flight, host time of the launch, device time of the step alone."""
    runner.reset()
    plans, waiting, launch_s, outcomes = SteadyPlans(runner, rows, context, temperature), [], [], []
    ready = [plans.next() for _ in range(steps)]
    started = 0.0
    for number, plan in enumerate(ready):
        if number == 10:
            started = time.perf_counter()
        before = time.perf_counter()
        waiting.append(runner.launch(plan))
        launch_s.append(time.perf_counter() - before)
        if len(waiting) == 2:
            outcomes.append(waiting.pop(0).wait())
    outcomes += [pending.wait() for pending in waiting]
    wall = (time.perf_counter() - started) / (steps - 10)
    floor = floor_ms(runner, rows, context + steps // 2)
    result = {
        "rows": rows,
        "wall_ms": round(wall * 1e3, 3),
        "forward_ms": round(statistics.median(o.forward_seconds for o in outcomes[5:]) * 1e3, 3),
        "gap_us": round(statistics.median(o.gap_seconds for o in outcomes[5:]) * 1e6, 1),
        "launch_us": round(statistics.median(launch_s[5:]) * 1e6, 1),
        "floor_ms": round(floor, 3),
        "of_floor": round(floor / (wall * 1e3), 3),
    }
    print(json.dumps(result), flush=True)
    return result


def prefill(runner: ModelRunner, rows: int, length: int) -> dict[str, Any]:
    """A step of whole prompts."""
    forward, wall = [], []
    for _ in range(8):
        runner.reset()
        plan = SteadyPlans(runner, rows, length, 0.0).next(length)
        torch.cuda.synchronize()
        started = time.perf_counter()
        outcome = runner.launch(plan).wait()
        wall.append(time.perf_counter() - started)
        forward.append(outcome.forward_seconds)
    result = {"prefill": f"{rows} x {length}", "wall_ms": round(statistics.median(wall[2:]) * 1e3, 3),
              "forward_ms": round(statistics.median(forward[2:]) * 1e3, 3)}  # fmt: skip
    print(json.dumps(result), flush=True)
    return result


def profile(runner: ModelRunner, rows: int, context: int, query_len: int = 1) -> dict[str, Any]:
    """Device time of one step by kernel, microseconds: [(name, calls, total)], greatest first."""
    runner.reset()
    plans = SteadyPlans(runner, rows, context, 0.6)
    steps = [plans.next(query_len)] if query_len > 1 else [plans.next() for _ in range(4)]
    runner.launch(steps[0]).wait()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as recorded:
        if query_len > 1:
            runner.reset()
        for plan in steps[1:] or steps:
            runner.launch(plan).wait()
        torch.cuda.synchronize()
    count = len(steps[1:] or steps)
    table: dict[str, list[float]] = {}
    for event in recorded.key_averages():
        table[event.key[:70]] = [event.count / count, round(event.device_time_total / count, 1)]
    ordered = sorted(table.items(), key=lambda item: -item[1][1])
    total = sum(times[1] for times in table.values())
    print(f"-- profile: {rows} rows of {context}, {query_len} new; total {total:.0f} us")
    for name, (calls, total) in ordered[:16]:
        print(f"{total:>9.1f} us {calls:>6.0f} x {total / max(calls, 1):>7.2f}  {name}")
    return {"rows": rows, "context": context, "new": query_len, "kernels": ordered[:24]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps of one runner, in process.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--graphs", default="auto")
    parser.add_argument("--no-overlap", action="store_true", help="kernels wait for the whole one before")
    parser.add_argument("--small-tokens", type=int, default=small_linear.MOST_TOKENS)
    parser.add_argument("--library", action="store_true", help="the library's products")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--profile", type=int, nargs="*", default=[1, 32, 256])
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    machine.OVERLAP = not options.no_overlap
    small_linear.MOST_TOKENS = options.small_tokens
    if options.library:
        fused_linear.MOST_TOKENS = fused_linear.MOST_STREAMED_TOKENS = 0
    started = time.perf_counter()
    settings = read_settings(
        ["--model", options.model, "--load-format", "dummy", "--dtype", "bfloat16",
         "--cuda-graphs", options.graphs, "--max-model-len", "4096"]
    )  # fmt: skip
    runner = load(examine(settings)).runner
    start = round(time.perf_counter() - started, 1)
    report: dict[str, Any] = {"commit": options.commit or this_commit(), "start_s": start}
    print(report)

    def keep(name: str, value: Any) -> None:
        report.setdefault(name, []).append(value)
        options.out.write_text(json.dumps(report, indent=1))

    for rows in options.rows:
        keep("decode", decode(runner, rows, 1000, 60, 0.6))
    for rows, length in ((1, 2048), (1, 512), (1, 128), (1, 16), (8, 256)) if options.profile else ():
        keep("prefill", prefill(runner, rows, length))
    for rows in options.profile:
        keep("profiles", profile(runner, rows, 1024))
    if options.profile:
        keep("profiles", profile(runner, 1, 2048, 2048))


if __name__ == "__main__":
    main()

# mypy: disable-error-code="no-untyped-call"
"""Swaps blocks to the host and back on a CUDA device, alone and under decodes, and checks every byte.

`python -m benchmarks.gpu_swap --model DIR [--block-size N] [--gib G] [--rows R] [--context C]`

Owns the byte pattern, the floor beside it and the report; knows no scheduler. Invariant: each block's bytes
are a function of its number, so that one wrong block, or one rewritten too early, is named; the last line
is the report as JSON, whatever happened before it, and the exit status is 1 if any byte was wrong.
"""

import argparse
import json
import logging
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_step import SteadyPlans
from gpu_worker.config import read_settings
from gpu_worker.errors import WorkerError
from gpu_worker.host_pool import HostPool
from gpu_worker.kv_pool import GIB
from gpu_worker.loading import examine, load
from gpu_worker.model_runner import ModelRunner, StepOutcome
from gpu_worker.wire import Int32Array, Plan

REPETITIONS = 5
FAILURES = (RuntimeError, ValueError, AssertionError, MemoryError, OSError, WorkerError)
_PRIME = 40_503


def bytes_of(runner: ModelRunner) -> int:
    """Of one block."""
    pool = runner.pool.tensor
    return pool.numel() // pool.shape[2] * pool.element_size()


def write_pattern(runner: ModelRunner, blocks: Int32Array, salt: int) -> None:
    """Fills these blocks; element e of block b of layer l is a hash of (b, l, e, salt) in 16 bits."""
    words = _words(runner)
    ids = torch.from_numpy(blocks.astype(np.int64)).to(words.device)
    for half in range(words.shape[0]):
        for layer in range(words.shape[1]):
            words[half, layer, ids] = _pattern(runner, ids, half * words.shape[1] + layer, salt)


def wrong_blocks(runner: ModelRunner, blocks: Int32Array, named: Int32Array, salt: int) -> list[int]:
    """Those of `blocks` that do not hold, bit by bit, the pattern of the block of that place in `named`."""
    words = _words(runner)
    at = torch.from_numpy(blocks.astype(np.int64)).to(words.device)
    ids = torch.from_numpy(named.astype(np.int64)).to(words.device)
    good = torch.ones(len(blocks), dtype=torch.bool, device=words.device)
    for half in range(words.shape[0]):
        for layer in range(words.shape[1]):
            expected = _pattern(runner, ids, half * words.shape[1] + layer, salt)
            good &= (words[half, layer, at] == expected).all(1)
    bad: list[int] = blocks[~good.cpu().numpy()].tolist()
    return bad


def _words(runner: ModelRunner) -> torch.Tensor:
    """The pool as 16-bit words [2, layers, blocks, words of a block in one layer]."""
    pool = runner.pool.tensor
    return pool.view(torch.int16).view(*pool.shape[:3], -1)


def _pattern(runner: ModelRunner, ids: torch.Tensor, layer: int, salt: int) -> torch.Tensor:
    """[n, words]; the sign bit of the exponent is left clear, so that no word is an infinity or a NaN."""
    words = _words(runner).shape[3]
    index = torch.arange(words, dtype=torch.int64, device=ids.device)
    mixed = (ids[:, None] * _PRIME + layer * 7919 + salt * 104_729 + index[None]) * 2_654_435_761
    return ((mixed >> 9) & 0x3FFF).to(torch.int16)


def interleaved(first: Int32Array, second: Int32Array) -> Int32Array:
    return np.stack((first, second), axis=1).astype(np.int32)


def floors(num_bytes: int) -> dict[str, float]:
    """GB/s of one plain copy of so many bytes between pinned memory and the device, each way."""
    count = min(num_bytes, GIB)
    pinned = torch.empty(count, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(count, dtype=torch.uint8, device="cuda")
    return {
        "out": round(count / _timed(lambda: pinned.copy_(device, non_blocking=True)) / 1e9, 2),
        "in": round(count / _timed(lambda: device.copy_(pinned, non_blocking=True)) / 1e9, 2),
    }


def _timed(work: Callable[[], object]) -> float:
    """Median seconds on a CUDA device, after one run to warm up."""
    seconds = []
    for _ in range(REPETITIONS + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return statistics.median(seconds[1:])


def alone(runner: ModelRunner, host: HostPool, count: int) -> dict[str, Any]:
    """`count` blocks out and into other blocks, nothing else running; scattered and consecutive host ids."""
    report: dict[str, Any] = {"blocks": count, "mib": round(count * bytes_of(runner) / 2**20)}
    chance = np.random.default_rng(0)
    blocks = chance.permutation(runner.pool.num_blocks).astype(np.int32)
    source, target = blocks[:count], blocks[count : 2 * count]
    for name, hosts in (
        ("consecutive", np.arange(count, dtype=np.int32)),
        ("scattered", chance.permutation(host.num_blocks)[:count].astype(np.int32)),
    ):
        out_s, in_s = [], []
        wrong: list[int] = []
        for salt in range(REPETITIONS):
            write_pattern(runner, source, salt)
            runner.device.synchronize()
            host.swap_out(salt, interleaved(source, hosts))
            out_s.append(host.acknowledge(salt, wait=True).seconds)
            write_pattern(runner, source, salt + 100)  # what was copied may be rewritten now
            runner.device.synchronize()
            started = time.perf_counter()
            host.swap_in(interleaved(hosts, target))
            runner.device.synchronize()
            in_s.append(time.perf_counter() - started)
            wrong += wrong_blocks(runner, target, source, salt)
        moved = count * bytes_of(runner) / 1e9
        report[name] = {
            "out_gb_s": round(moved / statistics.median(out_s[1:]), 2),
            "in_gb_s": round(moved / statistics.median(in_s[1:]), 2),
            "wrong_blocks": wrong[:8],
        }
        print(json.dumps({name: report[name]}), flush=True)
    return report


class Load:
    """Steady decodes, beside which blocks that no row names are swapped."""

    def __init__(self, runner: ModelRunner, rows: int, context: int) -> None:
        runner.reset()
        self.runner = runner
        self.plans = SteadyPlans(runner, rows, context, 0.0)
        self.idle = np.setdiff1d(np.arange(runner.pool.num_blocks, dtype=np.int32), self.plans.tables)
        self.outcomes: list[StepOutcome] = []
        self._waiting: list[Any] = []

    def step(self, **changes: Any) -> Plan:
        """One more step, with two in flight."""
        plan = replace(self.plans.next(), **changes)
        self._waiting.append(self.runner.launch(plan))
        if len(self._waiting) == 2:
            self.outcomes.append(self._waiting.pop(0).wait())
        return plan

    def drain(self) -> None:
        self.outcomes += [pending.wait() for pending in self._waiting]
        self._waiting.clear()

    def acknowledged(self, step_id: int) -> bool:
        return any(step_id in outcome.transfers.step_ids for outcome in self.outcomes)


def under_load(runner: ModelRunner, rows: int, context: int, count: int) -> dict[str, Any]:
    """Swaps of `count` blocks under decodes of `rows` rows: their bytes, and what they cost the steps."""
    load = Load(runner, rows, context)
    count = min(count, len(load.idle) // 2)
    source, target = load.idle[:count], load.idle[count : 2 * count]
    hosts = np.arange(count, dtype=np.int32)
    calm_ms = _steps_ms(load, 40)
    wrong: list[int] = []
    seconds, beside, lag, stall = [], [], [], []
    for salt in range(REPETITIONS):
        write_pattern(runner, source, salt)
        runner.device.synchronize()
        first = len(load.outcomes)
        swap = load.step(swap_out_pairs=interleaved(source, hosts))
        steps = 1
        while not load.acknowledged(swap.step_id):
            load.step()
            steps += 1
        seconds.append(sum(o.transfers.seconds for o in load.outcomes[first:]))
        beside += [o.forward_seconds for o in load.outcomes[first:]]
        lag.append(steps)
        write_pattern(runner, source, salt + 100)  # acknowledged: the blocks may be rewritten
        first = len(load.outcomes)
        load.step(swap_in_pairs=interleaved(hosts, target))
        load.drain()
        stall.append(max(o.block_move_seconds for o in load.outcomes[first:]))
        wrong += wrong_blocks(runner, target, source, salt)
    moved = count * bytes_of(runner) / 1e9
    calm_forward = statistics.median(o.forward_seconds for o in load.outcomes[5:30])
    report = {
        "rows": rows, "context": context, "blocks": count, "mib": round(moved * 1e9 / 2**20),
        "out_gb_s": round(moved / statistics.median(seconds), 2),
        "in_gb_s": round(moved / statistics.median(stall), 2),
        "steps_until_acknowledged": lag,
        "calm_step_ms": calm_ms,
        "calm_forward_ms": round(calm_forward * 1e3, 3),
        "forward_beside_swap_ms": round(statistics.median(beside) * 1e3, 3),
        "slowdown": round(statistics.median(beside) / calm_forward, 3),
        "wrong_blocks": wrong[:8],
    }  # fmt: skip
    print(json.dumps(report), flush=True)
    return report


def _steps_ms(load: Load, count: int) -> float:
    for _ in range(10):
        load.step()
    started = time.perf_counter()
    for _ in range(count):
        load.step()
    return round((time.perf_counter() - started) / count * 1e3, 3)


def late_write(runner: ModelRunner) -> dict[str, Any]:
    """That the check sees a block rewritten before its acknowledgement: the next step zeroes the sources."""
    host, count = runner.host, min(256, runner.pool.num_blocks // 4)
    assert host is not None
    source = np.arange(count, dtype=np.int32)
    target = source + count
    hosts = np.arange(count, dtype=np.int32)
    write_pattern(runner, source, 1)
    runner.device.synchronize()
    host.swap_out(1, interleaved(source, hosts))
    runner.pool.tensor[:, :, : len(source)] = 0
    host.acknowledge(1, wait=True)
    host.swap_in(interleaved(hosts, target))
    runner.device.synchronize()
    return {"rewritten_too_early": len(wrong_blocks(runner, target, source, 1)), "of": count}


def main() -> int:
    parser = argparse.ArgumentParser(description="Swaps under a byte pattern.")
    parser.add_argument("--model", required=True, help="folder; its config alone is read")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--gib", type=float, default=8.0, help="size of the host tier")
    parser.add_argument("--rows", type=int, nargs="*", default=[8, 64])
    parser.add_argument("--context", type=int, default=1000)
    parser.add_argument("--mib", type=int, nargs="*", default=[64, 1024], help="sizes of one swap")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    report: dict[str, Any] = {"benchmark": "gpu_swap", "block_size": options.block_size, "errors": []}

    def part(name: str, work: Callable[[], dict[str, Any]]) -> None:
        """One measurement; its failure is told and the others go on."""
        try:
            report.setdefault(name, []).append(work())
        except FAILURES as error:
            traceback.print_exc()
            report["errors"].append(f"{name}: {type(error).__name__}: {error}"[:300])

    try:
        runner = _start(options, report)
        host = runner.host
        assert host is not None
        sizes = [min(mib * 2**20 // bytes_of(runner), host.num_blocks) for mib in options.mib]
        part("floor_gb_s", lambda: floors(GIB))
        for count in sizes:
            part("alone", lambda count=count: alone(runner, host, count))  # type: ignore[misc]
        for rows in options.rows:
            for count in sizes:
                part(
                    "under_load",
                    lambda rows=rows, count=count: under_load(runner, rows, options.context, count),  # type: ignore[misc]
                )
        part("negative_control", lambda: late_write(runner))
    except FAILURES as error:
        traceback.print_exc()
        report["errors"].append(f"start: {type(error).__name__}: {error}"[:300])
    found = [*(part for run in report.get("alone", []) for part in run.values() if isinstance(part, dict))]
    found += report.get("under_load", [])
    report["every_byte_right"] = bool(found) and not any(part["wrong_blocks"] for part in found)
    print(json.dumps(report), flush=True)
    return 0 if report["every_byte_right"] and not report["errors"] else 1


def _start(options: argparse.Namespace, report: dict[str, Any]) -> ModelRunner:
    """A runner with random weights and a pool large enough, but no larger than needed."""
    started = time.perf_counter()
    settings = read_settings(
        ["--model", options.model, "--load-format", "dummy", "--dtype", "bfloat16",
         "--block-size", str(options.block_size), "--max-model-len", "4096",
         "--gpu-memory-utilization", "0.5", "--swap-space", str(options.gib)]
    )  # fmt: skip
    runner = load(examine(settings)).runner
    report["device"], report["start_s"] = runner.device.name, round(time.perf_counter() - started, 1)
    report["bytes_per_block"] = bytes_of(runner)
    print(json.dumps(report), flush=True)
    return runner


if __name__ == "__main__":
    sys.exit(main())

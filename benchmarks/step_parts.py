"""Where a step's time goes on a CPU: `python -m benchmarks.step_parts [--write]`.

Owns the parts of a step of 1 and 32 rows and of a prefill, of the torch decoder (before) and of the compiled
layers; knows no service. Invariant: one thread, and of every part the mean of the steps' fastest third, so
that a shared machine distorts it least. Last line: one JSON object.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import cpu_page
from benchmarks.worker import Batch
from gpu_worker.config import read_settings
from gpu_worker.loading import examine, load
from gpu_worker.model_runner import ModelRunner
from gpu_worker.models.cpu_decoder import CpuDecoder

_OPERATORS = {
    "aten::mm": "products",
    "aten::addmm": "products",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
    "aten::scaled_dot_product_attention": "attention",
    "aten::index_select": "gather of keys and values",
    "aten::index": "gather of keys and values",
}
"""Self time of these operators of torch; every other one is "other operators"."""


def runner_of(model: Path, dtype: str, backend: str, quantize: str) -> ModelRunner:
    flags = ["--model", str(model), "--device", "cpu", "--dtype", dtype, "--kernel-backend", backend]
    flags += ["--quantize", quantize, "--max-model-len", "1056", "--max-num-batched-tokens", "4096"]
    return load(examine(read_settings([*flags, "--threads", "1", "--log-level", "WARNING"]))).runner


def parts_of(runner: ModelRunner, rows: int, prompt: int, new: int, steps: int) -> dict[str, float]:
    """Milliseconds by part of a step in which each row computes `new` tokens behind a prompt."""
    own = isinstance(runner.decoder, CpuDecoder)
    each = _compiled(runner, rows, prompt, new, steps) if own else _torch(runner, rows, prompt, new, steps)
    fastest = sorted(each, key=lambda parts: sum(parts.values()))[: max(len(each) // 3, 1)]
    names = dict.fromkeys(name for parts in fastest for name in parts)
    return {name: float(np.mean([parts.get(name, 0.0) for parts in fastest])) for name in names}


def _compiled(runner: ModelRunner, rows: int, prompt: int, new: int, steps: int) -> list[dict[str, float]]:
    assert isinstance(runner.decoder, CpuDecoder)
    spent = runner.decoder.watch()
    heads: list[float] = []
    logits = runner.decoder.logits

    def timed(hidden: torch.Tensor) -> torch.Tensor:
        started = time.perf_counter()
        result = logits(hidden)
        heads.append(1e3 * (time.perf_counter() - started))
        return result

    runner.decoder.logits = timed  # type: ignore[method-assign]
    found = []
    for batch in _batches(runner, rows, prompt, new, steps):
        before = {part: int(value) for part, value in spent.items()}
        seconds = batch.advance(new)
        parts = {part: (int(value) - before[part]) / 1e6 for part, value in spent.items()}
        parts["head"] = heads[-1]
        parts["sample and the rest"] = 1e3 * seconds - sum(parts.values())
        found.append(parts)
    runner.decoder.logits = logits  # type: ignore[method-assign]
    return found


def _torch(runner: ModelRunner, rows: int, prompt: int, new: int, steps: int) -> list[dict[str, float]]:
    found = []
    for batch in _batches(runner, rows, prompt, new, steps):
        with profile(activities=[ProfilerActivity.CPU]) as taken:
            seconds = batch.advance(new)
        parts: dict[str, float] = defaultdict(float)
        for event in taken.key_averages():
            parts[_OPERATORS.get(event.key, "other operators")] += event.self_cpu_time_total / 1e3
        parts["between operators"] = max(1e3 * seconds - sum(parts.values()), 0.0)
        found.append(dict(parts))
    return found


def _batches(runner: ModelRunner, rows: int, prompt: int, new: int, steps: int) -> Any:
    """A batch for each step: decodes go on with one, a prefill begins anew."""
    if new > 1:
        for _ in range(max(steps // 8, 2)):
            yield Batch(runner, rows, new, 0.0)
        return
    batch = Batch(runner, rows, prompt + steps + 2, 0.0)
    batch.advance(prompt)
    batch.advance(1)
    for _ in range(steps):
        yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--write", action="store_true", help="keep the result and renew docs/cpu.md")
    options = parser.parse_args()
    cases = {"1 row": (1, 128, 1), "32 rows": (32, 128, 1), "prefill of 1024": (1, 0, 1024)}
    kinds = {
        "torch, float32": ("float32", "torch", "none"),
        "torch, bfloat16": ("bfloat16", "torch", "none"),
        "compiled, bfloat16": ("bfloat16", "cpu", "none"),
        "compiled, int4": ("bfloat16", "cpu", "int4"),
    }
    rows = []
    for kind, settings in kinds.items():
        runner = runner_of(options.model, *settings)
        for case, sizes in cases.items():
            parts = parts_of(runner, *sizes, options.steps)
            rows.append({"name": f"{case}, {kind}", "ms": parts, "total": sum(parts.values())})
            shown = ", ".join(f"{name} {value:.1f}" for name, value in parts.items())
            print(f"{rows[-1]['name']}: {rows[-1]['total']:.1f} ms: {shown}", flush=True)
    result = {"steps": options.steps, "rows": rows}
    if options.write:
        cpu_page.keep("step", result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

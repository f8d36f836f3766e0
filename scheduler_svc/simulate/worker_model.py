"""What a step takes at the worker: from measured step times, or from bytes and arithmetic.

Owns the formula, the presets and the file form; does not know plans' rows beyond their lengths. Invariant:
the time of a step depends on its plan alone, and more tokens or longer contexts never take less.

A step takes `linear(T)` for everything that grows with its T new tokens (weights, products, launches), and
for each decode reading the K and V of its context, for each longer row that or multiplying its (query, key)
pairs, whichever is longer. Block
copies take their bytes over the bandwidth.
"""

import json
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import numpy as np

from scheduler_svc.core.plan import StepPlan
from scheduler_svc.simulate.fields import Fields
from scheduler_svc.simulate.trace import TraceError

HOST_BYTES_PER_SECOND = 45e9
"""What swapping out 1 GiB gave on an H200 (benchmarks/results/h200-swap.json); swapping in gave 53e9."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """points: (new tokens, seconds) of a step without its attention over contexts, rising; linear between and
    beyond. kv_token_seconds: to read the K and V of one token, all layers. pair_seconds: to attend one query
    to one key, all layers and heads. kv_token_bytes: K and V of a token. host_bytes_per_second: of swaps to
    and from host memory.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    kv_token_seconds: float
    pair_seconds: float
    kv_token_bytes: int
    host_bytes_per_second: float = HOST_BYTES_PER_SECOND

    def move_seconds(self, num_blocks: int, block_size: int) -> float:
        """How long that many blocks take to or from host memory."""
        return num_blocks * block_size * self.kv_token_bytes / self.host_bytes_per_second

    def seconds(self, plan: StepPlan, block_size: int) -> float:
        """How long the worker computes this plan."""
        contexts = plan.context_lens
        if len(plan.input_ids) == len(contexts):  # decodes only
            attention = self.kv_token_seconds * float(contexts.sum(dtype=np.int64))
        else:
            queries = plan.query_lens.astype(np.float64)
            pairs = queries * (contexts - (queries - 1) / 2)
            attention = float(np.maximum(self.kv_token_seconds * contexts, self.pair_seconds * pairs).sum())
        copies = 2 * len(plan.copy_pairs) * block_size * self.kv_token_seconds  # read and written
        return self._linear(len(plan.input_ids)) + attention + copies

    def _linear(self, tokens: int) -> float:
        """Between the points, and beyond them by the slope at the nearer end, but never below the first."""
        if len(self.points) == 1:
            return self.points[0][1]
        at = bisect_left(self.points, tokens, key=itemgetter(0))
        (x0, y0), (x1, y1) = self.points[max(0, min(at, len(self.points) - 1) - 1) :][:2]
        return max(self.points[0][1], y0 + (tokens - x0) * (y1 - y0) / (x1 - x0))


@dataclass(frozen=True, slots=True)
class Roofline:
    """A worker that was not measured: bytes over bandwidth or arithmetic over peak, whichever is longer.

    weight_bytes: read in each step. kv_token_bytes: of one token, all layers. flops_per_token: of the
    products. flops_per_pair: of one query and one key, all layers and heads. bandwidth: bytes a second.
    flops: arithmetic a second. overhead_seconds: of each step.
    """

    weight_bytes: float
    kv_token_bytes: float
    flops_per_token: float
    flops_per_pair: float
    bandwidth: float
    flops: float
    overhead_seconds: float = 0.0

    def step_times(self, name: str) -> StepTimes:
        reading = self.weight_bytes / self.bandwidth
        bend = max(1.0, reading * self.flops / self.flops_per_token)
        after = max(reading, bend * self.flops_per_token / self.flops)
        beyond = after + bend * self.flops_per_token / self.flops
        points = tuple(
            (tokens, self.overhead_seconds + seconds)
            for tokens, seconds in ((0.0, reading), (bend, after), (2 * bend, beyond))
        )
        pair_seconds = self.flops_per_pair / self.flops
        kv_seconds = self.kv_token_bytes / self.bandwidth
        return StepTimes(name, points, kv_seconds, pair_seconds, int(self.kv_token_bytes))


H200_QWEN3_06B = StepTimes(
    name="h200-qwen3-0.6b",
    points=((1, 0.809e-3), (32, 0.809e-3), (128, 1.101e-3), (256, 1.400e-3), (2048, 3.98e-3)),
    kv_token_seconds=114_688 / 4.3e12,
    pair_seconds=5.76e-10,
    kv_token_bytes=114_688,
)
"""Qwen3-0.6B in bfloat16 on one H200, measured through both services at commit 485071c.

From benchmarks/results/h200.json: decode steps at 1, 32, 128 and 256 rows of about 1024 tokens, less the KV
they read at 4.3 TB/s (one row took 0.04 ms longer than 32 without that; times may not fall, so 32 have as
long); and load C, a prompt of 2048 tokens against one of two. From h200-steps.json: prefill
attention over 2048 tokens, 43.1 us a layer, 28 layers. docs/simulate.md works it out.
"""

CPU_SMOLLM2_135M = StepTimes(
    name="cpu-smollm2-135m",
    points=((1, 16.6e-3), (8, 21.6e-3), (32, 68.3e-3), (128, 161e-3), (1024, 1.207)),
    kv_token_seconds=3.35e-6,
    pair_seconds=9.03e-7,
    kv_token_bytes=23_040,
)
"""SmolLM2-135M-Instruct in bfloat16 on one core with AVX512-BF16: the table of docs/simulate.md."""

PRESETS = {model.name: model for model in (H200_QWEN3_06B, CPU_SMOLLM2_135M)}

_HOST = "host_bytes_per_second"
_MEASURED = ("points", "kv_token_seconds", "pair_seconds", "kv_token_bytes", _HOST)
_ROOFLINE = tuple(Roofline.__dataclass_fields__)


def read_worker_model(path: Path) -> StepTimes:
    """From a JSON object with the fields of StepTimes or of Roofline. Raises TraceError, OSError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"--worker-model {path}: no JSON: {error}") from error
    if not isinstance(values, dict):
        raise TraceError(f"--worker-model {path}: a JSON object is needed")
    fields = Fields(f"--worker-model {path}", values)
    known = _MEASURED if "points" in values else (*_ROOFLINE, _HOST)
    for name in values:
        if name not in known:
            raise TraceError(f"{fields.where}: {name}: not among {', '.join(known)}")
    if "points" not in values:
        return replace(_roofline(fields).step_times(path.stem), host_bytes_per_second=_host_rate(fields))
    return StepTimes(
        path.stem,
        _points(fields),
        fields.number("kv_token_seconds", 0),
        fields.number("pair_seconds", 0),
        fields.integer("kv_token_bytes", 1, 1 << 40),
        _host_rate(fields),
    )


def _host_rate(fields: Fields) -> float:
    rate = fields.number(_HOST, 0) if _HOST in fields.values else HOST_BYTES_PER_SECOND
    if rate <= 0:
        raise fields.error(_HOST, rate, "more than 0")
    return rate


def _points(fields: Fields) -> tuple[tuple[float, float], ...]:
    value = fields.values["points"]
    pairs = isinstance(value, list) and all(
        isinstance(item, list) and len(item) == 2 and all(isinstance(x, int | float) for x in item)
        for item in value
    )
    if not pairs or not value:
        raise fields.error("points", str(value)[:40], "a list of [new tokens, seconds]")
    points = tuple((float(tokens), float(seconds)) for tokens, seconds in value)
    if points[0][1] <= 0:
        raise fields.error("points", points[0][1], "more than 0 seconds")
    for before, after in pairwise(points):
        if not (before[0] < after[0] and before[1] <= after[1]):
            raise fields.error("points", f"{list(before)}, {list(after)}", "rising in tokens and in seconds")
    return points


def _roofline(fields: Fields) -> Roofline:
    wanted = [name for name in _ROOFLINE if name in fields.values or name != "overhead_seconds"]
    numbers = {name: fields.number(name, 0) for name in wanted}
    for name, value in numbers.items():
        if value <= 0 and name != "overhead_seconds":
            raise fields.error(name, value, "more than 0")
    return Roofline(**numbers)

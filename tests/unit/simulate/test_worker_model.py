"""Step times: the formula, the presets against what was measured, and model files."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scheduler_svc.core.plan import Capacity, Epoch, NewRequest, SchedulerConfig, SeqId, StepPlan, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.simulate.trace import TraceError
from scheduler_svc.simulate.worker_model import (
    CPU_SMOLLM2_135M,
    H200_QWEN3_06B,
    Roofline,
    StepTimes,
    read_worker_model,
)
from tests.architecture.sources import REPOSITORY
from tests.unit.simulate.traces import path_of

RESULTS = REPOSITORY / "benchmarks" / "results"
BANDWIDTH = 4.3e12
LAYERS = 28


def plans(rows: int, prompt: int, steps: int) -> list[StepPlan]:
    """The first plans of `rows` equal requests: one of prompts, then decodes."""
    core = Scheduler(SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=1 << 20, depth=1))
    core.worker_ready(Capacity(Epoch(1), "m", 100_000, 16, 1 << 20, rows, 1 << 20))
    for i in range(rows):
        core.add(NewRequest(SeqId(i), np.full(prompt, i, np.int32), max_tokens=steps), 0.0)
    made = []
    for _ in range(steps):
        plan = core.schedule(0.0)
        assert plan is not None
        made.append(plan)
        core.apply(StepResult(plan.step_id, np.full(len(plan.sample_rows), 1, np.int32)), 0.0)
    return made


def test_a_decode_step_is_the_products_and_the_context_it_reads() -> None:
    model = StepTimes("m", ((1.0, 0.010), (3.0, 0.020)), 1e-5, 1.0, 1)
    step = plans(rows=2, prompt=100, steps=2)[1]
    assert model.seconds(step, 16) == pytest.approx(0.015 + 2 * 101 * 1e-5)


def test_a_prompt_is_the_larger_of_its_pairs_and_its_context() -> None:
    step = plans(rows=1, prompt=100, steps=1)[0]
    pairs = 100 * 101 / 2
    by_pairs = StepTimes("m", ((1.0, 0.010),), 1e-9, 1e-6, 1)
    by_context = StepTimes("m", ((1.0, 0.010),), 1e-3, 1e-9, 1)
    assert by_pairs.seconds(step, 16) == pytest.approx(0.010 + pairs * 1e-6)
    assert by_context.seconds(step, 16) == pytest.approx(0.010 + 100 * 1e-3)


def test_a_copied_block_is_read_and_written() -> None:
    model = StepTimes("m", ((1.0, 0.010),), 1e-5, 0.0, 1)
    step = plans(rows=1, prompt=3, steps=1)[0]
    copying = replace(step, copy_pairs=np.zeros((5, 2), np.int32))
    assert model.seconds(copying, 16) - model.seconds(step, 16) == pytest.approx(5 * 2 * 16 * 1e-5)


def test_beyond_the_points_the_last_slope_goes_on_and_below_them_nothing_is_faster() -> None:
    model = StepTimes("m", ((8.0, 0.010), (16.0, 0.020), (32.0, 0.022)), 0.0, 0.0, 1)
    times = [model.seconds(plans(1, tokens, 1)[0], 16) for tokens in (1, 8, 12, 16, 32, 48)]
    assert times == pytest.approx([0.010, 0.010, 0.015, 0.020, 0.022, 0.024])


def test_a_roofline_is_flat_by_bytes_and_then_rises_by_arithmetic() -> None:
    model = Roofline(1e9, 1e5, 1e9, 1e6, 1e12, 1e14, 0.5e-3).step_times("m")
    reading, per_token = 1e9 / 1e12, 1e9 / 1e14
    times = [model.seconds(plans(1, tokens, 1)[0], 16) for tokens in (1, 50, 1000, 4000)]
    attention = [max(n * 1e5 / 1e12, n * (n + 1) / 2 * 1e6 / 1e14) for n in (1, 50, 1000, 4000)]
    expected = [0.5e-3 + max(reading, n * per_token) for n in (1, 50, 1000, 4000)]
    assert times == pytest.approx([a + b for a, b in zip(expected, attention, strict=True)])


def test_the_h200_preset_is_what_was_measured() -> None:
    data = json.loads((RESULTS / "h200.json").read_text())
    assert data["commit"] == "485071c", "a new measurement: renew the preset and docs/simulate.md"
    rows = {row["name"]: row["octavo"] for row in data["rows"]}
    longest = 0.0  # of fewer rows without their KV: more never take less
    for count in (1, 32, 128, 256):
        measured = rows[f"qwen3-0.6b: decode step ms, {count} row{'s' if count > 1 else ''}"] / 1e3
        step = plans(count, 1023, 2)[1]
        kv_seconds = H200_QWEN3_06B.kv_token_seconds * float(step.context_lens.sum())
        longest = max(longest, measured - kv_seconds)
        assert H200_QWEN3_06B.seconds(step, 16) == pytest.approx(longest + kv_seconds, rel=0.01)
    first = data["runs"]["qwen3-0.6b"]["octavo load C"][0]
    longer = (np.median(first["ms"]) - np.median(first["two_tokens_ms"])) / 1e3
    modelled = H200_QWEN3_06B.seconds(plans(1, 2048, 1)[0], 16) - H200_QWEN3_06B.seconds(
        plans(1, 2, 1)[0], 16
    )
    assert modelled == pytest.approx(longer, rel=0.03)
    profiles = json.loads((RESULTS / "h200-steps.json").read_text())["profiles"]
    (prefill,) = (dict(profile["kernels"]) for profile in profiles if profile["new"] == 2048)
    calls, attention_us = prefill["hopper_kernel"]
    assert calls == LAYERS
    pairs = 2048 * 2049 / 2
    assert H200_QWEN3_06B.pair_seconds * pairs == pytest.approx(attention_us * 1e-6, rel=0.01)
    assert H200_QWEN3_06B.kv_token_seconds == H200_QWEN3_06B.kv_token_bytes / BANDWIDTH


def test_the_cpu_preset_is_the_table_of_the_simulator_page() -> None:
    text = (REPOSITORY / "docs" / "simulate.md").read_text("utf-8")
    row = re.search(r"^\| \*\*bfloat16\*\* \|(.*)\|$", text, re.MULTILINE)
    assert row is not None
    one, eight, many, long, short_prefill, prefill = (
        float(cell.strip(" *")) for cell in row.group(1).split("|")
    )
    model = CPU_SMOLLM2_135M
    for count, measured in ((1, one), (8, eight), (32, many)):
        assert model.seconds(plans(count, 127, 2)[1], 16) == pytest.approx(measured / 1e3, rel=0.02)
    assert model.seconds(plans(1, 1023, 2)[1], 16) == pytest.approx(long / 1e3, rel=0.02)
    for length, rate in ((128, short_prefill), (1024, prefill)):
        assert model.seconds(plans(1, length, 1)[0], 16) == pytest.approx(length / rate, rel=0.02)


MEASURED = {"points": [[1, 0.01]], "kv_token_seconds": 0, "pair_seconds": 0, "kv_token_bytes": 8}
ROOFLINE = {
    "weight_bytes": 1e9,
    "kv_token_bytes": 1e5,
    "flops_per_token": 1e9,
    "flops_per_pair": 1e5,
    "bandwidth": 1e12,
    "flops": 1e14,
}


def test_model_files_of_both_kinds(tmp_path: Path) -> None:
    measured = read_worker_model(path_of(tmp_path, json.dumps(MEASURED), "mine.json"))
    assert (measured.name, measured.points) == ("mine", ((1.0, 0.01),))
    assert measured.move_seconds(10, 16) == 10 * 16 * 8 / 45e9
    slow = read_worker_model(path_of(tmp_path, json.dumps(MEASURED | {"host_bytes_per_second": 4}), "m.json"))
    assert slow.move_seconds(10, 16) == 10 * 16 * 8 / 4
    modelled = read_worker_model(path_of(tmp_path, json.dumps(ROOFLINE), "box.json"))
    assert modelled == Roofline(**ROOFLINE).step_times("box")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (MEASURED | {"points": []}, "points []: must be a list of [new tokens, seconds]"),
        (MEASURED | {"points": [[1, 0]]}, "points 0.0: must be more than 0 seconds"),
        (MEASURED | {"points": [[2, 1], [1, 2]]}, "must be rising in tokens and in seconds"),
        (MEASURED | {"speed": 3}, "speed: not among points, kv_token_seconds"),
        (MEASURED | {"pair_seconds": -1}, "pair_seconds -1: must be a number of at least 0"),
        (ROOFLINE | {"bandwidth": 0}, "bandwidth 0.0: must be more than 0"),
        (ROOFLINE | {"host_bytes_per_second": 0}, "host_bytes_per_second 0.0: must be more than 0"),
        ({"weight_bytes": 1}, "kv_token_bytes is missing"),
        ([], "a JSON object is needed"),
    ],
)
def test_a_bad_model_file_is_named(tmp_path: Path, values: object, said: str) -> None:
    path = path_of(tmp_path, json.dumps(values), "m.json")
    with pytest.raises(TraceError) as error:
        read_worker_model(path)
    assert said in str(error.value)
    assert str(error.value).startswith(f"--worker-model {path}: ")

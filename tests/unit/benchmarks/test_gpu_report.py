"""The GPU benchmark's result file: rows of several models at one commit, and what becomes of the runs."""

import json
from pathlib import Path

import pytest

from benchmarks.bench_gpu import StepTimes, median_of, quantile_of
from benchmarks.gpu_loads import (
    ARITHMETIC,
    BANDWIDTH,
    BATCHES,
    LOAD_A,
    LOAD_C,
    SHAPES,
    Load,
    Sizes,
    decode_name,
    read_config,
    sizes,
    targets,
    write_model,
)
from benchmarks.gpu_measures import measure
from benchmarks.gpu_report import Report, table


class StandIn:
    """An engine whose time is counted from the load: 1 ms a prompt token, 1 s a round of outputs."""

    def __init__(self) -> None:
        self.prompts: list[tuple[int, ...]] = []

    def run(self, load: object, temperature: float) -> float:
        self.prompts += [tuple(prompt) for prompt in load.prompts]  # type: ignore[attr-defined]
        return max(load.outputs) * 1.0  # type: ignore[attr-defined]

    def first_token(self, prompt: list[int]) -> float:
        return len(prompt) / 1e3


def test_figures_are_medians_after_the_first_run_and_every_run_is_noted() -> None:
    notes: dict[str, object] = {}
    engine = StandIn()
    rows = measure(engine, 2, notes.__setitem__)
    assert rows[decode_name(1)] == 1000  # a second a token
    assert {f"decode {count}" for count in BATCHES} | {"load A", "load C", "load D"} == set(notes)
    assert len(engine.prompts) == len(set(engine.prompts)), "a prompt twice: its repeat would hit the cache"


def test_models_are_merged_in_one_file_and_a_repeat_replaces_its_own(tmp_path: Path) -> None:
    path = tmp_path / "h200.json"
    for shape, rate in ((SHAPES[0], 1.0), (SHAPES[1], 2.0), (SHAPES[0], 3.0)):
        report = Report(path, shape, "abc")
        report.add("octavo", {LOAD_A: rate})
        report.add("octavo", {LOAD_A: rate + 2})
        report.add("vllm", {LOAD_A: 0.5})
        report.note("octavo load A", [rate])
    data = json.loads(path.read_text(encoding="utf-8"))
    assert [(row["name"], row["octavo"], row["vllm"]) for row in data["rows"]] == [
        (f"{SHAPES[1]}: {LOAD_A}", 3.0, 0.5),
        (f"{SHAPES[0]}: {LOAD_A}", 4.0, 0.5),
    ]
    assert data["runs"] == {SHAPES[0]: {"octavo load A": [[3.0]]}, SHAPES[1]: {"octavo load A": [[2.0]]}}
    with pytest.raises(SystemExit, match="measured at abc, this is def"):
        Report(path, SHAPES[0], "def")


@pytest.mark.parametrize(
    ("value", "target", "higher", "verdict"),
    [
        (2.0, 1.0, True, "met"),
        (0.5, 1.0, True, "MISSED"),
        (0.5, 1.0, False, "met"),
        (2.0, 1.0, False, "MISSED"),
    ],
)
def test_a_verdict_knows_which_way_is_better(value: float, target: float, higher: bool, verdict: str) -> None:
    row = {"name": "x", "octavo": value, "vllm": None, "floor": None, "target": target}
    assert table([row | {"higher_is_better": higher}])[1].endswith(verdict)
    assert table([row | {"higher_is_better": higher, "octavo": target}])[1].endswith("met")


def test_floors_are_bytes_over_bandwidth() -> None:
    """Qwen3-0.6B: 28 layers of 15,730,688 weights, 155,582,464 of the head, 1,024 of the last norm."""
    found = sizes(read_config("qwen3-0.6b"))
    assert found.weight_bytes == 2 * (28 * 15_730_688 + 155_582_464 + 1_024)
    assert found.kv_bytes == 2 * 2 * 28 * 8 * 128
    assert targets("qwen3-0.6b")[decode_name(1)].floor == pytest.approx(0.3045, abs=1e-3)
    assert targets("llama-3.1-8b")[decode_name(256)].floor == pytest.approx(11.48, abs=0.01)


def test_a_loads_floor_counts_what_is_shared_once() -> None:
    """Two prompts of 3 tokens, 2 of them common, 3 and 2 outputs; 8 bytes of weights, 10 of a token's KV.

    Four tokens computed. Two steps read the 2 common tokens; of their own, the rows read 2 and 3, and 2.
    """
    model, load = Sizes(8, 10), Load([[1, 2, 3], [1, 2, 4]], [3, 2])
    steps = 2 * 8 + (2 * 2 + 2 + 3 + 2) * 10
    assert model.load_floor(load, shared=2) == pytest.approx(4 * 8 / ARITHMETIC + steps / BANDWIDTH)
    apart = 2 * 8 + (4 + 5 + 4) * 10
    assert model.load_floor(load) == pytest.approx(6 * 8 / ARITHMETIC + apart / BANDWIDTH)


def test_only_the_loads_that_are_asked_for_are_run() -> None:
    notes: dict[str, object] = {}
    assert set(measure(StandIn(), 1, notes.__setitem__, ["C"])) == {LOAD_C}
    assert set(notes) == {"load C"}


def test_a_drawn_model_has_the_shape_and_a_tokenizer_but_no_weights(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    folder = write_model("llama-3.1-8b", source, tmp_path / "model")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "tokenizer.json"]
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"] == 32


def test_the_median_of_a_histogram_is_taken_inside_its_bucket() -> None:
    before = {1e-5: 5.0, 2e-5: 5.0, float("inf"): 5.0}
    after = {1e-5: 5.0, 2e-5: 15.0, float("inf"): 15.0}
    assert median_of(before, after) == 15.0
    assert quantile_of(before, after, 0.9) == 19.0
    assert quantile_of(before, after | {float("inf"): 35.0}, 0.9) == 20.0


def test_what_the_steps_of_a_load_took_is_noted_beside_it() -> None:
    class Worker:
        steps = 3

        def histogram(self, name: str) -> tuple[dict[float, float], float]:
            step = 2e-3 if "forward" in name else 1e-5
            return {1.0: float(self.steps), float("inf"): float(self.steps)}, self.steps * step

    worker, noted = Worker(), dict[str, object]()
    steps = StepTimes(worker, noted.__setitem__)
    worker.steps += 100
    steps.note("load A", 1)
    assert noted["load A"] == 1
    assert noted["load A steps"] == {"steps": 100, "forward_s": 0.2, "gap_s": 0.001, "gap_p99_us": 990_000.0}
    worker.steps += 10
    steps.note("decode 32", 2)
    assert noted["decode 32 steps"]["steps"] == 10  # type: ignore[index]
    assert list(steps.found) == ["step gap p50 us, 32 rows"]

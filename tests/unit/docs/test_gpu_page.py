"""docs/performance.md, its pictures and the README say what benchmarks/results/h200.json holds."""

import json
from pathlib import Path

from benchmarks.gpu_loads import BATCHES, LOAD_A, SHAPES, decode_name
from tools import gpu_docs

ROOT = Path(__file__).resolve().parents[3]
DATA = json.loads(gpu_docs.RESULTS.read_text(encoding="utf-8"))
ROWS = {row["name"]: row for row in DATA["rows"]}


def test_the_page_is_up_to_date() -> None:
    text = gpu_docs.PAGE.read_text(encoding="utf-8")
    assert gpu_docs.page(text) == text, "python -m tools.gpu_docs --write"


def test_a_changed_figure_makes_the_page_stale() -> None:
    changed = [row | {"octavo": (row["octavo"] or 0) + 1} for row in DATA["rows"]]
    assert gpu_docs.tables(DATA | {"rows": changed}) != gpu_docs.tables(DATA)


def test_what_was_not_measured_has_no_ratio_and_no_verdict() -> None:
    row = DATA["rows"][0]
    without = [row | {"octavo": None}, *DATA["rows"][1:]]
    lines = [line for table in gpu_docs.tables(DATA | {"rows": without}).values() for line in table]
    assert sum(line.endswith(f"| - | - | {row['target']:,} |  |") for line in lines) == 1


def test_the_pictures_show_the_files_figures() -> None:
    for shape in SHAPES:
        steps = (ROOT / "docs" / "pictures" / f"gpu-decode-{shape}.svg").read_text(encoding="utf-8")
        for count in BATCHES:
            row = ROWS[f"{shape}: {decode_name(count)}"]
            assert all(f">{row[engine]:.2f}<" in steps for engine in ("octavo", "vllm"))
        loads = (ROOT / "docs" / "pictures" / f"gpu-loads-{shape}.svg").read_text(encoding="utf-8")
        assert f">{ROWS[f'{shape}: {LOAD_A}']['octavo']:,.0f}<" in loads


def test_the_readme_tells_the_same() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for shape in SHAPES:
        for engine in ("octavo", "vllm"):
            figures = " / ".join(f"{ROWS[f'{shape}: {decode_name(n)}'][engine]:.2f}" for n in BATCHES)
            assert figures in text
    assert DATA["commit"] in text

"""The tables of docs/performance.md, from benchmarks/results/h200.json: `python -m tools.gpu_docs --write`.

Owns which rows stand in which table; measures nothing. Invariant: every figure of Octavo or vLLM in the
tables is one of the file's.
"""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_loads import (
    BATCHES,
    COLD,
    LOAD_A,
    LOAD_C,
    LOAD_D,
    SHAPES,
    SPLIT,
    WARM,
    decode_name,
    gap_name,
)
from benchmarks.gpu_report import Row, verdict
from tools.doc_tables import renewed, run

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "h200.json"
PAGE = ROOT / "docs" / "performance.md"
DECODE = "| decode step, ms | rows | floor | vLLM | Octavo | to vLLM | target | |"
LOADS = "| load | model | floor | vLLM | Octavo | to vLLM | target | |"
GAPS = "| idle between steps, p50 us | 1 row | 32 rows | 128 rows | 256 rows | target |"


def page(text: str) -> str:
    """docs/performance.md as it ought to be."""
    return renewed(text, tables(json.loads(RESULTS.read_text(encoding="utf-8"))))


def tables(data: dict[str, Any]) -> dict[str, list[str]]:
    """The rows under each header line."""
    rows = {row["name"]: row for row in data["rows"]}
    found = [shape for shape in SHAPES if f"{shape}: {LOAD_A}" in rows]
    decode = [
        _line((shape, str(count)), rows[f"{shape}: {decode_name(count)}"])
        for shape in found
        for count in BATCHES
    ]
    loads = [
        _line((name, shape), rows[f"{shape}: {name}"])
        for name in (LOAD_A, LOAD_C, LOAD_D, COLD, WARM, SPLIT)
        for shape in found
        if f"{shape}: {name}" in rows
    ]
    gaps = [
        f"| {shape} | "
        + " | ".join(_figure(rows[f"{shape}: {gap_name(count)}"]["octavo"]) for count in BATCHES)
        + " | 50 |"
        for shape in found
    ]
    return {DECODE: decode, LOADS: loads, GAPS: gaps}


def _line(head: tuple[str, str], row: Row) -> str:
    told = row["octavo"] is not None and row["vllm"] is not None
    ratio = f"{row['octavo'] / row['vllm']:.2f}" if told else "-"
    cells = [
        *head,
        *(_figure(row[key]) for key in ("floor", "vllm", "octavo")),
        ratio,
        _figure(row["target"]),
    ]
    return f"| {' | '.join(cells)} | {verdict(row).lower()} |"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(run(PAGE, page, "tools.gpu_docs"))

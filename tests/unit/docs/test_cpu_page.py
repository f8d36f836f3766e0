"""docs/cpu.md and README show what benchmarks/results/cpu.json holds, and renewing changes nothing else."""

import json

import pytest

from benchmarks import cpu_page

LINE = {
    f"{prefix}{case}_tok_s": 1000.0 * number + len(prefix)
    for prefix in ("", "int4_", "vllm_")
    for number, case in enumerate(cpu_page.CASES)
} | {f"{kind}_{case}_vllm": 1.25 for kind in ("ratio", "cpu_ratio") for case in cpu_page.CASES}
MADE = {
    "speed": {
        "names": {"octavo": "octavo", "octavo_int4": "octavo --quantize int4", "vllm": "vLLM 1.2 CPU, x"},
        "rounds": 3,
        "line": LINE,
        "measured_at": "a machine",
    },
    "step": {
        "steps": 5,
        "rows": [{"name": "1 row", "ms": {"qkv": 1.0, "head": 3.25}, "total": 4.25}],
        "measured_at": "a machine",
    },
    "start": {"rounds": 2, "trees": {"new": {"start_s": 5.04, "cpu_s": 6}}, "measured_at": "a machine"},
}


def test_the_pages_are_in_line_with_the_results() -> None:
    results = json.loads(cpu_page.RESULTS.read_text(encoding="utf-8")) if cpu_page.RESULTS.exists() else {}
    for path in cpu_page.PAGES:
        text = path.read_text(encoding="utf-8")
        assert cpu_page.renewed(text, results) == text, f"{path.name} is stale: python -m benchmarks.cpu_page"


def test_every_part_is_shown_between_its_markers() -> None:
    page, readme = (path.read_text(encoding="utf-8") for path in cpu_page.PAGES)
    made = cpu_page.renewed(page, MADE)
    assert "| **octavo, bfloat16** | 0.0 | 1,000 | 2,000 | 3,000 |" in made
    assert "| octavo --quantize int4 | 5.0 | 1,005 | 2,005 | 3,005 |" in made
    assert "| ratio to vLLM 1.2 CPU | 1.25 | 1.25 | 1.25 | 1.25 |" in made
    assert "| 1 row | 1.0 | 3.2 | **4.2** |" in made
    assert "| new | 5.0 | 6.0 |" in made
    assert "| vLLM 1.2 CPU, x | 5.0 | 1,005 | 2,005 | 3,005 |" in cpu_page.renewed(readme, MADE)
    assert cpu_page.renewed(made, MADE) == made
    outside = [line for line in page.split("<!-- speed: begin")[0].splitlines() if line]
    assert [line for line in made.splitlines() if line][: len(outside)] == outside


def test_half_a_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="one marker of speed"):
        cpu_page.renewed("<!-- speed: begin (python -m benchmarks.cpu_page) -->\n", MADE)

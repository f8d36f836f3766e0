"""The tables and plots of docs/block-size.md, from the result files: `python -m benchmarks.block_size.page`.

Owns their layout; measures nothing and writes none of the text around them. Invariant: a page that is up to
date is left as it is.

A table stands between `<!-- name -->` and `<!-- end -->`.
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from scheduler_svc.simulate import plots

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "block-size.md"
PICTURES = REPOSITORY / "docs" / "block-size"
RESULTS = REPOSITORY / "benchmarks" / "results" / "block-size.json"
GPU_RESULTS = REPOSITORY / "benchmarks" / "results" / "h200-block-size.json"

Results = dict[str, Any]
Row = dict[str, Any]


def write(results: Results, gpu: Results | None) -> None:
    """Renews tables and plots."""
    PAGE.write_text(page(PAGE.read_text("utf-8"), results, gpu), "utf-8")
    draw(results, gpu, PICTURES)


def gpu_results() -> Results | None:
    return json.loads(GPU_RESULTS.read_text()) if GPU_RESULTS.exists() else None


def page(text: str, results: Results, gpu: Results | None) -> str:
    """The page with all tables as they ought to be. Raises KeyError for a table that nobody makes."""

    def renewed(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- {name} -->\n{TABLES[name](results, gpu)}\n<!-- end -->"

    return re.sub(r"<!-- ([a-z-]+) -->\n.*?<!-- end -->", renewed, text, flags=re.DOTALL)


def draw(results: Results, gpu: Results | None, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, lines, label in pictures(results, gpu):
        sizes = [row["block_size"] for row in results["hash"]]
        plots.save(
            folder / f"{name}.svg", partial(plots.over_block_sizes, sizes=sizes, lines=lines, label=label)
        )


def pictures(results: Results, gpu: Results | None) -> Iterable[tuple[str, dict[str, list[float]], str]]:
    """(name, lines, label of the values) of each plot."""
    waste, rates = results["waste"], results["hit_rate"]
    yield "waste", {name: [100 * row["waste"] for row in waste[name]] for name in waste}, "% of held slots"
    lines = {}
    for name in rates:
        lines[f"{name}, whole blocks"] = [100 * row["whole_blocks"] for row in rates[name]]
        lines[f"{name}, inside blocks too"] = [100 * row["inside_blocks"] for row in rates[name]]
    yield "hit-rate", lines, "% of prompt tokens found"
    costs = {
        "hash 8192 tokens": [row["hash_us"] for row in results["hash"]],
        "find them": [row["lookup_us"] for row in results["hash"]],
        "whole step, 256 rows": [row["step_us"] for row in results["scheduling"]],
    }
    yield "cost", costs, "us"
    steps = [row["ms"] for row in results["cpu_step"]["steps"]]
    lines = {"CPU decode step": [ms / steps[0] for ms in steps]}
    for case, rows in _gpu_cases(gpu):
        lines[f"H200 attention, {case}"] = [row["us"] / rows[0]["us"] for row in rows]
    yield "step", lines, "time, blocks of 16 = 1"


def _gpu_cases(gpu: Results | None) -> Iterable[tuple[str, list[Row]]]:
    """Rows of each case in order of block size."""
    found = gpu["results"] if gpu is not None else []
    for case in dict.fromkeys((row["rows"], row["context"]) for row in found):
        yield f"{case[0]} x {case[1]}", [row for row in found if (row["rows"], row["context"]) == case]


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _sources(results: Results, gpu: Results | None) -> str:
    parts: dict[str, list[str]] = {}
    for part, where in results["measured_at"].items():
        parts.setdefault(where, []).append(part)
    where = " ".join(f"{', '.join(names)}: {place}." for place, names in parts.items())
    if gpu is not None:
        device = gpu["machine"]
        where += f" GPU: {device['device']}, torch {device['torch']}, at commit {gpu['commit']}."
    return where


def _traces(part: str) -> Callable[[Results, Results | None], str]:
    def named(results: Results, gpu: Results | None) -> str:
        traces = results[f"{part}_traces"]
        return "; ".join(f"{name}: {what}" for name, what in traces.items()) + "."

    return named


def _waste(results: Results, gpu: Results | None) -> str:
    head = ["block size", "waste, azure", "waste, sessions", "table of a request, bytes"]
    head += ["plan of a step, bytes", "of a decode step"]
    azure, sessions = results["waste"]["azure"], results["waste"]["sessions"]
    rows = [
        [
            str(a["block_size"]), f"{a['waste']:.1%}", f"{s['waste']:.1%}",
            f"{a['table_bytes_per_request']:.0f}", f"{a['plan_bytes_per_step']:,.0f}",
            f"{a['plan_bytes_per_decode_step']:,.0f}",
        ]
        for a, s in zip(azure, sessions, strict=True)
    ]  # fmt: skip
    return _table(head, rows)


def _hit_rate(results: Results, gpu: Results | None) -> str:
    rates = results["hit_rate"]
    head = ["block size"] + [f"{name}, {how}" for name in rates for how in ("whole", "inside too")]
    rows = []
    for i, row in enumerate(rates["sessions"]):
        cells = [f"{rates[name][i][key]:.1%}" for name in rates for key in ("whole_blocks", "inside_blocks")]
        rows.append([str(row["block_size"]), *cells])
    return _table(head, rows)


def _hash(results: Results, gpu: Results | None) -> str:
    one = results["hash_one"]
    under = "under" if one["ns_256_tokens"] < 1000 else "over"
    return (
        f"One block of 256 token ids: {one['ns_256_tokens']:.0f} ns, {one['ns_empty']:.0f} of them the call "
        f"from Python. It is {under} a microsecond."
    )


def _cost(results: Results, gpu: Results | None) -> str:
    head = ["block size", "hash 8192 tokens, us", "find and verify them, us"]
    head += ["plan and encode a step of 256 rows, us", "the whole step, us"]
    rows = [
        [
            str(h["block_size"]), f"{h['hash_us']:.0f}", f"{h['lookup_us']:.0f}", f"{s['plan_us']:.0f}",
            f"{s['step_us']:.0f}",
        ]
        for h, s in zip(results["hash"], results["scheduling"], strict=True)
    ]  # fmt: skip
    return _table(head, rows)


def _step(results: Results, gpu: Results | None) -> str:
    cpu = results["cpu_step"]
    cases = list(_gpu_cases(gpu))
    head = ["block size", f"CPU step, {cpu['rows']} rows of {cpu['context']}, ms of one core"]
    head += [f"H200, {case}, us (TB/s)" for case, _ in cases]
    rows = []
    for i, step in enumerate(cpu["steps"]):
        cells = [f"{case[i]['us']:.1f} ({case[i]['tb_s']:.2f})" for _, case in cases]
        rows.append([str(step["block_size"]), f"{step['ms']:.1f}", *cells])
    floors = [f"{case[0]['floor_us']:.1f}" for _, case in cases]
    return _table(head, [*rows, *([["floor", "", *floors]] if cases else [])])


def _contiguous(results: Results, gpu: Results | None) -> str:
    head = ["model limit", "block size", "running at once, mean (most)", "waste", "gave up waiting"]
    head += ["preemptions", "first token p50 / p99, s", "tokens/s"]
    rows = [
        [
            f"{r['max_model_len']:,}", str(r["block_size"]), f"{r['running_mean']:.0f} ({r['running_most']})",
            f"{r['waste']:.1%}", f"{r['gave_up_waiting']} of {r['requests']:,}", f"{r['preemptions']}",
            f"{r['first_token_p50_s']:.2f} / {r['first_token_p99_s']:.2f}", f"{r['tokens_per_s']:,.0f}",
        ]
        for r in results["contiguous"]
    ]  # fmt: skip
    return _table(head, rows)


TABLES: dict[str, Callable[[Results, Results | None], str]] = {
    "sources": _sources,
    "waste-traces": _traces("waste"),
    "hit-rate-traces": _traces("hit_rate"),
    "contiguous-traces": _traces("contiguous"),
    "waste": _waste,
    "hit-rate": _hit_rate,
    "hash": _hash,
    "cost": _cost,
    "step": _step,
    "contiguous": _contiguous,
}


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text()), gpu_results())

"""The measured tables of docs/cpu.md and README.md, from benchmarks/results/cpu.json: `python -m
benchmarks.cpu_page`.

Owns the result file's parts (speed, step, start) and how each is shown; measures nothing. Invariant: the
pages show what the file holds, between markers; the text around them is left as it is.
"""

import argparse
import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "cpu.json"
PAGES = (ROOT / "docs" / "cpu.md", ROOT / "README.md")
CASES = {"c1": "1 stream", "c8": "8", "c32": "32", "prefill": "prefill of 1024"}
_MARKER = "<!-- {}: {} (python -m benchmarks.cpu_page) -->"


def processor() -> str:
    """The processor's name, its cores that this process may use, and what of AMX and AVX512-BF16 it has."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    name = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    flags = set((re.search(r"^flags\s*:(.*)$", text, re.MULTILINE) or ["", ""])[1].split())
    has = [
        "AMX" if "amx_tile" in flags else "no AMX",
        "AVX512-BF16" if "avx512_bf16" in flags else "no AVX512-BF16",
    ]
    return (
        f"{name[1] if name else platform.machine()}, {len(os.sched_getaffinity(0))} cores, {', '.join(has)}"
    )


def measured_at() -> str:
    """Processor, load of the last minute and commit."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return f"{processor()}, load {os.getloadavg()[0]:.1f}, commit {commit}"


def keep(part: str, value: dict[str, Any]) -> None:
    """Puts a part's result into the file and renews the page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results[part] = value | {"measured_at": measured_at()}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    renew(results)


def renew(results: dict[str, Any]) -> None:
    """Puts what the file holds into every page."""
    for path in PAGES:
        path.write_text(renewed(path.read_text(encoding="utf-8"), results), encoding="utf-8")


def renewed(page: str, results: dict[str, Any]) -> str:
    """The page with every part of the file that it has markers for. Raises ValueError for half a marker."""
    shown = {
        "speed": (speed, "speed"),
        "step": (step, "step"),
        "start": (start, "start"),
        "short": (short, "speed"),
    }
    for name, (show, part) in shown.items():
        first, last = _MARKER.format(name, "begin"), _MARKER.format(name, "end")
        if (first in page) != (last in page):
            raise ValueError(f"a page has one marker of {name}, not both")
        if first in page and part in results:
            before, _, rest = page.partition(first)
            page = f"{before}{first}\n{show(results[part])}{last}{rest.partition(last)[2]}"
    return page


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def speed(value: dict[str, Any]) -> str:
    """Tokens per second of everyone, and Octavo's ratios to each peer."""
    line, names = value["line"], value["names"]
    rows = []
    for key, name in names.items():
        prefix = "" if key == "octavo" else f"{key.removeprefix('octavo_')}_"
        shown = "**octavo, bfloat16**" if key == "octavo" else name
        rows.append([shown, *(_figure(line[f"{prefix}{case}_tok_s"]) for case in CASES)])
    for kind, words in (("ratio", "ratio to"), ("cpu_ratio", "by CPU time, to")):
        for key, name in names.items():
            if not key.startswith("octavo"):
                short = name.split(",")[0]
                if key == "llama_cpp_file":
                    short += ", the file's weights"
                rows.append([f"{words} {short}", *(f"{line[f'{kind}_{case}_{key}']:.2f}" for case in CASES)])
    made = f"Measured at: {value['measured_at']}; median of {value['rounds']} rounds in turns.\n\n"
    return made + _table(["tok/s", *CASES.values()], rows)


def short(value: dict[str, Any]) -> str:
    """The README's table: Octavo and each peer in its best dtype, by tokens per second."""
    line = value["line"]
    rows = []
    for key, name in value["names"].items():
        if key == "octavo" or not key.startswith("octavo"):
            prefix = "" if key == "octavo" else f"{key}_"
            shown = "**Octavo, bfloat16**" if key == "octavo" else name
            rows.append([shown, *(_figure(line[f"{prefix}{case}_tok_s"]) for case in CASES)])
    return f"{value['measured_at']}.\n\n" + _table(["tok/s", *CASES.values()], rows)


def step(value: dict[str, Any]) -> str:
    """Milliseconds of one core by part of a step, before and after."""
    parts = list(dict.fromkeys(part for row in value["rows"] for part in row["ms"]))
    rows = [
        [
            row["name"],
            *(f"{row['ms'][part]:.1f}" if part in row["ms"] else "-" for part in parts),
            f"**{row['total']:.1f}**",
        ]
        for row in value["rows"]
    ]
    return (
        f"Measured at: {value['measured_at']}; one thread, the least of {value['steps']} steps.\n\n"
        + _table(["ms", *parts, "all"], rows)
    )


def start(value: dict[str, Any]) -> str:
    """Seconds from the command to the first token."""
    rows = [
        [tree, f"{found['start_s']:.1f}", f"{found['cpu_s']:.1f}"] for tree, found in value["trees"].items()
    ]
    made = f"Measured at: {value['measured_at']}; median of {value['rounds']} rounds.\n\n"
    return made + _table(["tree", "seconds", "CPU seconds"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    renew(results)


if __name__ == "__main__":
    main()

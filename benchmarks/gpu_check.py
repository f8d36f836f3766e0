"""Checks and times the Triton kernels on a CUDA device: `python benchmarks/gpu_check.py --out FILE`.

Owns the order of the parts and the report, and knows nothing of what they measure: each runs in a process of
its own (benchmarks/gpu_parts.py), so that one that crashes the device's context or hangs loses only itself.
Invariant: exit status 0 means every part ran and every shape was within its tolerance.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

PARTS = Path(__file__).with_name("gpu_parts.py")
SHARDS = 4
# Part, seconds it may take. Parts of one line run at the same time; timed ones run alone.
STAGES: list[list[tuple[str, int]]] = [
    [("speed", 70)],
    [(f"parity-{shard}", 90) for shard in range(SHARDS)],
    [("sweep", 70)],
]


def run_stage(stage: list[tuple[str, int]], folder: Path, cases: int) -> dict[str, dict[str, Any]]:
    """Run the parts of one stage together; a part without a result reports why under "failure"."""
    started = time.monotonic()
    processes = {}
    for part, _ in stage:
        command = [sys.executable, str(PARTS), part, str(folder / part), str(cases), str(SHARDS)]
        log = (folder / f"{part}.log").open("w")
        processes[part] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    results: dict[str, dict[str, Any]] = {}
    for part, limit in stage:
        process = processes[part]
        try:
            status = f"exit status {process.wait(max(1, limit - (time.monotonic() - started)))}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = f"ran past {limit} s"
        path = folder / part
        results[part] = json.loads(path.read_text()) if path.exists() else {}
        if status != "exit status 0":
            results[part]["failure"] = status
            print(f"--- {part}: {status}\n{(folder / f'{part}.log').read_text()[-1500:]}")
        results[part]["seconds"] = round(time.monotonic() - started, 1)
    return results


def print_parity(results: list[dict[str, Any]]) -> None:
    """Worst relative error and number of shapes, by dtype and head_dim and by block size."""
    for keys in (("dtype", "head_dim"), ("dtype", "block_size")):
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for result in results:
            groups[tuple(result[key] for key in keys)].append(result)
        print(f"\n{keys[0]:>10} {keys[1]:>10} {'shapes':>7} {'worst error':>12} {'wrong':>6}")
        for group, members in sorted(groups.items()):
            worst = max(member["error"] for member in members)
            wrong = sum(bool(member["wrong"]) for member in members)
            print(f"{group[0]:>10} {group[1]:>10} {len(members):>7} {worst:>12.2e} {wrong:>6}")
    for result in results:
        for text in result["wrong"]:
            print(f"WRONG {result['dtype']} seed {result['seed']} {result['shape']}: {text}")


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    print(f"\n{title}")
    names = list(rows[0])
    print("  ".join(f"{name:>16}" for name in names))
    for row in rows:
        print("  ".join(f"{row.get(name, ''):>16}" for name in names))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=Path, help="file for the JSON report")
    parser.add_argument("--cases", type=int, default=200, help="number of drawn shapes")
    options = parser.parse_args()
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for stage in STAGES:
            report |= run_stage(stage, Path(folder), options.cases)
    parity = [result for shard in range(SHARDS) for result in report[f"parity-{shard}"].pop("results", [])]
    wrong = [result for result in parity if result["wrong"]]
    failed = [part for part, result in report.items() if "failure" in result]
    summary = {
        "shapes": len(parity),
        "shapes_wrong": len(wrong),
        "worst_error": max((result["error"] for result in parity), default=None),
        "parts_failed": failed,
        "machine": report["speed"].get("machine"),
    }
    print_parity(parity)
    for title in ("bandwidth", "decode", "prefill", "mixed", "host"):
        print_rows(title, report["speed"].get(title, []))
    print_rows("sweep of launch shapes", report["sweep"].get("sweep", []))
    options.out.write_text(json.dumps({**summary, "parts": report, "parity": parity}, indent=1))
    print(json.dumps(summary))
    return 0 if not failed and not wrong and len(parity) == options.cases else 1


if __name__ == "__main__":
    sys.exit(main())

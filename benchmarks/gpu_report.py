"""The result file of the GPU benchmark: rows by model, machine, and every raw run.

Owns the file's form, the merging of models and the table; knows no engine. Invariant: the file is rewritten
after each entry, so that a killed run keeps what it had, and a row stands beside its floor and its target.

{"commit", "machine", "rows": [{"name": "MODEL: WHAT", "octavo", "vllm", "floor", "target",
"higher_is_better"}], "runs": {MODEL: {WHAT: ...}}}
"""

import importlib.metadata
import json
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_loads import Target, targets

Row = dict[str, Any]


class Report:
    """Of one model; rows of other models that the file has already stay in it."""

    def __init__(self, path: Path, shape: str, commit: str) -> None:
        self._path, self._shape = path, shape
        self._targets = targets(shape)
        old = json.loads(path.read_text()) if path.is_file() else {}
        self.data: dict[str, Any] = {"commit": commit, "machine": {}} | old
        if self.data["commit"] != commit:
            raise SystemExit(f"--out {path}: measured at {self.data['commit']}, this is {commit}")
        own = f"{shape}: "
        self.data["rows"] = [row for row in old.get("rows", []) if not row["name"].startswith(own)]
        self._runs = self.data.setdefault("runs", {})[shape] = {}
        self._found: dict[str, dict[str, list[float]]] = {}

    def note(self, name: str, value: object) -> None:
        """A raw run."""
        self._runs.setdefault(name, []).append(value)
        self._save()
        print(self._shape, name, json.dumps(value), flush=True)

    def add(self, engine: str, rows: Mapping[str, float]) -> None:
        """Figures of one round; several rounds give the median. engine: octavo or vllm."""
        for name, value in rows.items():
            self._found.setdefault(name, {}).setdefault(engine, []).append(value)
        self._save()

    def median(self, engine: str, name: str) -> float:
        """Of what was added under a name."""
        return statistics.median(self._found[name][engine])

    def machine(self, facts: Mapping[str, str]) -> None:
        self.data["machine"] |= facts
        self._save()

    def _rows(self) -> list[Row]:
        return [self._row(name, self._targets[name]) for name in self._targets if name in self._found]

    def _row(self, name: str, target: Target) -> Row:
        values = {engine: statistics.median(found) for engine, found in self._found[name].items()}
        return {
            "name": f"{self._shape}: {name}",
            "octavo": _rounded(values.get("octavo")),
            "vllm": _rounded(values.get("vllm")),
            "floor": _rounded(target.floor),
            "target": target.value,
            "higher_is_better": target.higher_is_better,
        }

    def _save(self) -> None:
        whole = self.data | {"rows": self.data["rows"] + self._rows()}
        self._path.write_text(json.dumps(whole, indent=1) + "\n")

    def print(self) -> None:
        print("\n" + "\n".join(table(self._rows())))


def table(rows: Sequence[Row]) -> list[str]:
    """One line a row: octavo, vllm, floor, target, and whether the target is met."""
    lines = [f"{'':<62}{'octavo':>10}{'vllm':>10}{'floor':>10}{'target':>10}"]
    for row in rows:
        cells = [row[key] for key in ("octavo", "vllm", "floor", "target")]
        text = "".join(f"{'-' if cell is None else f'{cell:.4g}':>10}" for cell in cells)
        lines.append(f"{row['name']:<62}{text}  {verdict(row)}")
    return lines


def verdict(row: Row) -> str:
    """met, MISSED, or nothing without a target."""
    if row["target"] is None or row["octavo"] is None:
        return ""
    over = row["octavo"] >= row["target"]
    return "met" if over == row["higher_is_better"] or row["octavo"] == row["target"] else "MISSED"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def this_machine() -> dict[str, str]:
    """The device, and the versions that matter."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton", "grpcio")}
    return {"device": done.stdout.strip(), "python": platform.python_version(), **versions}


def this_commit() -> str:
    """The abbreviated hash of the checkout, or nothing outside one."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

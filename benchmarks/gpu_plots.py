"""Pictures of the GPU benchmark's result file: `python -m benchmarks.gpu_plots FILE FOLDER`.

Owns what is drawn; works out no figure. Invariant: a bar is a row of the file, and a row's floor and target
are drawn on its bar.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_loads import BATCHES, LOAD_A, LOAD_C, LOAD_D, SHAPES, decode_name
from benchmarks.gpu_report import Row
from scheduler_svc.simulate.plots import save

Axes = Any
_COLOURS = {"octavo": "#3b6ea8", "vllm": "#c9a227"}
_NAMES = {"octavo": "Octavo", "vllm": "vLLM"}
_WIDTH = 0.36


def draw(data: dict[str, Any], folder: Path) -> list[Path]:
    """Two files for each shape that was measured: decode steps, and loads."""
    rows = {row["name"]: row for row in data["rows"]}
    drawn: list[Path] = []
    folder.mkdir(parents=True, exist_ok=True)
    for shape in SHAPES:
        steps = [rows.get(f"{shape}: {decode_name(count)}") for count in BATCHES]
        loads = [rows.get(f"{shape}: {name}") for name in (LOAD_A, LOAD_C, LOAD_D)]
        if None in steps or None in loads:
            continue
        drawn.append(save(folder / f"gpu-decode-{shape}.svg", partial(_steps, rows=steps, shape=shape)))
        drawn.append(save(folder / f"gpu-loads-{shape}.svg", partial(_loads, rows=loads, shape=shape)))
    return drawn


def _steps(axes: Axes, rows: list[Row], shape: str) -> None:
    """Milliseconds of a decode step by rows."""
    _bars(axes, rows, [1.0] * len(rows), lambda value: f"{value:.2f}")
    axes.set_xticks(range(len(rows)), [f"{count}" for count in BATCHES])
    axes.set(xlabel="rows of about 1024 tokens", ylabel="ms a decode step", title=shape)
    axes.legend()


def _loads(axes: Axes, rows: list[Row], shape: str) -> None:
    """Each load relative to its target, or to Octavo where there is none; the figures are written on."""
    units = [row["target"] or row["octavo"] for row in rows]
    _bars(axes, rows, units, lambda value: f"{value:,.0f}" if value >= 1000 else f"{value:.3g}")
    names = ["A: tok/s\n(more is better)", "C: ms to first token\n(less)", "D: seconds\n(less)"]
    axes.set_xticks(range(len(rows)), names)
    axes.set(ylabel="relative to the target", title=shape)
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.legend(loc="upper center", ncols=4)


def _bars(axes: Axes, rows: list[Row], units: list[float], text: Any) -> None:
    engines = [engine for engine in _COLOURS if any(row[engine] is not None for row in rows)]
    for number, engine in enumerate(engines):
        shift = (number - (len(engines) - 1) / 2) * _WIDTH
        places = [at + shift for at, row in enumerate(rows) if row[engine] is not None]
        values = [row[engine] for row in rows if row[engine] is not None]
        heights = [
            row[engine] / unit for row, unit in zip(rows, units, strict=True) if row[engine] is not None
        ]
        bars = axes.bar(places, heights, _WIDTH, color=_COLOURS[engine], label=_NAMES[engine])
        axes.bar_label(bars, [text(value) for value in values], fontsize=7, padding=1)
    for name, style, label in (("floor", "-", "floor"), ("target", ":", "target")):
        for at, (row, unit) in enumerate(zip(rows, units, strict=True)):
            if row[name] is not None:
                height = row[name] / unit
                axes.plot([at - _WIDTH, at + _WIDTH], [height] * 2, style, color="black", lw=1.2, label=label)
                label = "_"


def main() -> None:
    parser = argparse.ArgumentParser(description="Pictures of the GPU benchmark's result file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    for path in draw(json.loads(options.file.read_text()), options.folder):
        print(path)


if __name__ == "__main__":
    main()

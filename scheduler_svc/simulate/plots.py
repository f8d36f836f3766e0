"""A report as SVG files, drawn with matplotlib (the extra `plots`).

Owns what is drawn; works out no figure. Invariant: the same report gives the same bytes, and without
matplotlib everything but drawing works.
"""

import importlib.util
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from scheduler_svc.simulate.results import Figures
from scheduler_svc.simulate.trace import TraceError

Axes = Any
"""matplotlib's, which is imported only when something is drawn."""

STYLE: Any = {
    "svg.hashsalt": "octavo", "svg.fonttype": "none", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip


def require_library() -> None:
    """Raises TraceError where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise TraceError("--plots: matplotlib is not installed; pip install 'octavo[plots]'")


def draw(report: Figures, folder: Path) -> list[Path]:
    """Writes the files of a report and returns their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [save(folder / f"pool-{run['label']}.svg", partial(_pool, run=run)) for run in report["runs"]]
    if len(report["runs"]) > 1:
        drawn.append(save(folder / "block-sizes.svg", lambda axes: _block_sizes(axes, report["runs"])))
        drawn.append(save(folder / "latency.svg", lambda axes: _latency(axes, report["runs"])))
    return drawn


def save(path: Path, paint: Callable[[Axes], None], size: tuple[float, float] = (6.4, 3.2)) -> Path:
    """One file with one pair of axes, painted by the caller."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure.add_subplot())
        figure.savefig(path, metadata={"Date": None})
    return path


def over_block_sizes(axes: Axes, sizes: Iterable[int], lines: dict[str, list[float]], label: str) -> None:
    """Lines over block sizes on a logarithmic axis, each size written out."""
    ticks = list(sizes)
    for name, values in lines.items():
        axes.plot(ticks, values, marker="o", markersize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.minorticks_off()
    axes.set(xlabel="block size, tokens", ylabel=label)
    axes.legend()


def _pool(axes: Axes, run: Figures) -> None:
    timeline = run["timeline"]
    seconds = [sample["seconds"] for sample in timeline]
    held = [sample["blocks_active"] for sample in timeline]
    kept = [sample["blocks_evictable"] for sample in timeline]
    axes.stackplot(seconds, held, kept, labels=["active", "evictable"], colors=["#3b6ea8", "#c9d8e8"], lw=0)
    axes.set(xlabel="virtual seconds", ylabel=f"blocks of {run['block_size']}")
    right = axes.twinx()
    right.plot(seconds, [sample["running"] for sample in timeline], color="#b3541e", lw=0.8, label="running")
    right.plot(seconds, [sample["waiting"] for sample in timeline], color="#777777", lw=0.8, label="waiting")
    right.set_ylabel("requests")
    right.grid(visible=False)
    handles, names = (
        a + b for a, b in zip(*(x.get_legend_handles_labels() for x in (axes, right)), strict=True)
    )
    axes.legend(handles, names, loc="lower left", bbox_to_anchor=(0, 1), ncols=4)


def _block_sizes(axes: Axes, runs: list[Figures]) -> None:
    paged = [run for run in runs if run["label"] != "contiguous"]
    lines = {
        "prefix hit rate": [100 * (run["prefix"]["hit_rate"] or 0.0) for run in paged],
        "waste of held slots": [100 * (run["memory"]["waste"] or 0.0) for run in paged],
    }
    over_block_sizes(axes, [run["block_size"] for run in paged], lines, "%")


def _latency(axes: Axes, runs: list[Figures]) -> None:
    places = list(range(len(runs)))
    for shift, name in ((-0.25, "p50"), (0.0, "p90"), (0.25, "p99")):
        spreads = [run["latency"]["time_to_first_token_s"] for run in runs]
        heights = [spread[name] if spread else 0.0 for spread in spreads]
        axes.bar([place + shift for place in places], heights, 0.25, label=name)
    axes.set_xticks(places, [run["label"] for run in runs])
    axes.set(xlabel="block size", ylabel="time to first token, s")
    axes.legend()

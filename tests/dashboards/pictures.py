"""Draws a dashboard from its own JSON and Prometheus' answers, for the docs: places, stacks, units, legends.

Owns a plain look; Grafana draws its own. Invariant: what is drawn is what the panels ask for.
"""

import hashlib
import json
import math
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from PIL import Image

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from tests.dashboards.prometheus import Prometheus


class Span(NamedTuple):
    """The seconds before `end`, the same for all panels."""

    seconds: float
    end: int


Series = tuple[str, list[float], list[float]]
"""Legend, times, values."""

COLOURS = ["#3b76b8", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7b6fae", "#a0a0a0"]
_UNIT_PIXELS = 0.62
_MARK = "Dashboard"


def draw(dashboard: dict[str, Any], server: Prometheus, file: Path, seconds: float) -> None:
    """One picture of all panels over the last seconds."""
    span = Span(seconds, int(time.time()))
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    figure = plt.figure(figsize=(24 * _UNIT_PIXELS, rows * 0.34), dpi=100)
    figure.suptitle(dashboard["title"], x=0.012, y=1 - 0.12 / rows, ha="left", va="top", weight="bold")
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        box = (
            (place["x"] + 0.9) / 24, 1 - (place["y"] + place["h"] + 0.35) / (rows + 1.4),
            (place["w"] - 1.3) / 24, (place["h"] - 2.2) / (rows + 1.4),
        )  # fmt: skip
        axes = figure.add_axes(box)
        axes.set_title(panel["title"], fontsize=8.5, loc="left", weight="bold")
        {"stat": _stat, "heatmap": _heatmap}.get(panel["type"], _lines)(axes, panel, server, span)
    figure.savefig(file, metadata={_MARK: fingerprint(dashboard)})
    plt.close(figure)


def fingerprint(dashboard: dict[str, Any]) -> str:
    """Of the JSON; a picture carries that of the dashboard it was drawn from."""
    return hashlib.sha256(json.dumps(dashboard, sort_keys=True).encode()).hexdigest()


def drawn_from(file: Path) -> str:
    """The fingerprint in a picture, empty where there is none."""
    with Image.open(file) as picture:
        return str(picture.info.get(_MARK, ""))


def _series(panel: dict[str, Any], server: Prometheus, span: Span) -> list[Series]:
    found: list[Series] = []
    for target in panel["targets"]:
        for one in server.series(target["expr"], span.seconds, span.end):
            legend = target["legendFormat"]
            for label in re.findall(r"{{(\w+)}}", legend):
                legend = legend.replace(f"{{{{{label}}}}}", one["metric"].get(label, ""))
            times = [float(t) for t, _ in one["values"]]
            found.append((legend, times, [float(value) for _, value in one["values"]]))
    return found


def _stat(axes: Axes, panel: dict[str, Any], server: Prometheus, span: Span) -> None:
    axes.axis("off")
    values = server.values(panel["targets"][0]["expr"])
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.text(0, 0.35, _short(float(values[0]), unit) if values else "no data", fontsize=17, color=COLOURS[0])


def _lines(axes: Axes, panel: dict[str, Any], server: Prometheus, span: Span) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    unit, stacked = defaults["unit"], defaults["custom"]["stacking"]["mode"] == "normal"
    alone = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
    found = _series(panel, server, span)
    last = max((times[-1] for _, times, _ in found), default=0.0)
    for number, (legend, times, values) in enumerate(found):
        if not stacked or legend in alone:
            axes.plot([t - last for t in times], values, lw=1.2, color=COLOURS[number % 8], label=legend)
    layers = [one for one in found if stacked and one[0] not in alone]
    if layers:
        grid = sorted({t for _, times, _ in layers for t in times})
        heights = []
        for _, times, values in layers:
            known = dict(zip(times, values, strict=True))
            heights.append([0.0 if math.isnan(known.get(t, 0.0)) else known.get(t, 0.0) for t in grid])
        axes.stackplot(
            [t - last for t in grid], heights, labels=[one[0] for one in layers], colors=COLOURS, alpha=0.75
        )
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: _short(value, unit))
    axes.tick_params(labelsize=6.5)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=5.5, loc="upper left", ncols=2, framealpha=0.6, edgecolor="none")


def _heatmap(axes: Axes, panel: dict[str, Any], server: Prometheus, span: Span) -> None:
    found = sorted(_series(panel, server, span), key=lambda one: float(one[0].replace("+Inf", "inf")))
    grid = sorted({t for _, times, _ in found for t in times})
    below, cells = [0.0] * len(grid), []
    for _, times, values in found:
        known = dict(zip(times, values, strict=True))
        now = [known.get(t, 0.0) for t in grid]
        cells.append([max(0.0, a - b) for a, b in zip(now, below, strict=True)])
        below = now
    axes.imshow(cells, aspect="auto", origin="lower", cmap="Blues", interpolation="nearest")
    axes.set_yticks(range(len(found)), [legend for legend, _, _ in found], fontsize=5.5)
    axes.set_xticks([])


def _short(value: float, unit: str) -> str:
    if math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    if unit == "bool_on_off":
        return "on" if value else "off"
    if unit == "s" and abs(value) < 1:
        return f"{1000 * value:.3g} ms"
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}{'B' if unit == 'bytes' else ''}"
    return f"{value:.3g}{' s' if unit == 's' else ' B' if unit == 'bytes' else ''}"

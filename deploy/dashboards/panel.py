"""A panel and a dashboard, and what they are in Grafana's JSON.

Owns the form of the JSON and the usual queries; knows no metric. Invariant: every panel has a title, a unit
and a description, and panels do not overlap.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "prometheus"}
COLUMNS = 24
SCHEDULER = '{job="scheduler"}'
"""Both services export a step's times; the scheduler's series are those that survive a worker."""
_QUANTILES = (0.5, 0.95, 0.99)

Queries = tuple[tuple[str, str], ...]
"""(legend, PromQL) pairs."""


@dataclass(frozen=True, slots=True)
class Panel:
    """kind: stat, timeseries or heatmap (one query, buckets by le). lines: legends that are not stacked."""

    title: str
    unit: str
    description: str
    queries: Queries
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dashboard:
    """uid: also the file's name, after `octavo-`."""

    uid: str
    title: str
    panels: tuple[Panel, ...]

    @property
    def file_name(self) -> str:
        return f"{self.uid.removeprefix('octavo-')}.json"

    def text(self) -> str:
        """The file's content."""
        return json.dumps(self.json(), indent=2) + "\n"

    def json(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["octavo"],
            "schemaVersion": 39,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": {"from": "now-15m", "to": "now"},
            "timezone": "browser",
            "links": [
                {
                    "type": "dashboards", "tags": ["octavo"], "title": "Octavo", "asDropdown": False,
                    "icon": "dashboard", "includeVars": False, "keepTime": True, "targetBlank": False,
                    "tooltip": "", "url": "",
                }
            ],
            "panels": list(self._placed()),
        }  # fmt: skip

    def _placed(self) -> Iterator[dict[str, Any]]:
        x = y = row_height = 0
        for number, panel in enumerate(self.panels, start=1):
            height = 4 if panel.kind == "stat" else 8
            if x + panel.width > COLUMNS:
                x, y, row_height = 0, y + row_height, 0
            yield _json(panel, number, {"x": x, "y": y, "w": panel.width, "h": height})
            x, row_height = x + panel.width, max(row_height, height)


def rate(metric: str, selector: str = "", by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{selector}[$__rate_interval]))"


def quantiles(metric: str, selector: str = "") -> Queries:
    return tuple(
        (f"p{round(part * 100)}", f"histogram_quantile({part}, {rate(f'{metric}_bucket', selector, 'le')})")
        for part in _QUANTILES
    )


def mean(metric: str) -> str:
    return f"{rate(f'{metric}_sum', SCHEDULER)} / {rate(f'{metric}_count', SCHEDULER)}"


def _json(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": [_as_line(name) for name in panel.lines]},
        "options": _HEATMAP if panel.kind == "heatmap" else {},
        "targets": [
            {
                "refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend,
                "format": "heatmap" if panel.kind == "heatmap" else "time_series",
            }
            for index, (legend, query) in enumerate(panel.queries)
        ],
    }  # fmt: skip


def _defaults(panel: Panel) -> dict[str, Any]:
    if panel.kind != "timeseries":
        return {"unit": panel.unit}
    return {
        "unit": panel.unit,
        "min": 0,
        "custom": {
            "fillOpacity": 40 if panel.stacked else 8,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        },
    }


_HEATMAP = {
    "calculate": False,
    "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
    "yAxis": {"unit": "s"},
    "cellGap": 1,
    "showValue": "never",
    "tooltip": {"mode": "single"},
}


def _as_line(legend: str) -> dict[str, Any]:
    """A series drawn on its own, not on top of the stack."""
    properties = [
        {"id": "custom.stacking", "value": {"mode": "none", "group": "B"}},
        {"id": "custom.fillOpacity", "value": 0},
    ]
    return {"matcher": {"id": "byName", "options": legend}, "properties": properties}

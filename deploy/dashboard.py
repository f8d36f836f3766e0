"""Writes the Grafana dashboard of the KV pool: `python -m deploy.dashboard`.

Owns the panels: their titles, queries, units and places; knows neither the services nor Grafana's server.
Invariant: every panel has a unit and a description, and the file in the repository is what this writes.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("grafana") / "dashboards" / "kv-pool.json"
SOURCE = {"type": "prometheus", "uid": "prometheus"}
COLUMNS = 24
_QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. queries: (legend, PromQL) pairs. kind: stat or timeseries. lines: legends not stacked."""

    title: str
    unit: str
    description: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    lines: tuple[str, ...] = ()


def _rate(metric: str, selector: str = "", by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{selector}[$__rate_interval]))"


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"p{round(part * 100)}", f"histogram_quantile({part}, {_rate(f'{metric}_bucket', by='le')})")
        for part in _QUANTILES
    )


def _mean(metric: str) -> str:
    """Both services export a step's times; the scheduler's series are those that survive a worker."""
    return f"{_rate(f'{metric}_sum', _SCHEDULER)} / {_rate(f'{metric}_count', _SCHEDULER)}"


_SCHEDULER = '{job="scheduler"}'
_HIT_RATIO = f"{_rate('octavo_prefix_hit_tokens_total')} / {_rate('octavo_prefix_lookup_tokens_total')}"
_SAVED = 'sum(octavo_kv_block_refs) - sum(octavo_kv_blocks{state="active"})'

PANELS = (
    Panel(
        "Pool in use",
        "percentunit",
        "octavo_kv_usage_ratio: active blocks as a part of the capacity.",
        (("in use", "max(octavo_kv_usage_ratio)"),),
        "stat",
        4,
    ),
    Panel(
        "Worker session",
        "bool_on_off",
        "octavo_worker_session_up: 1 while the scheduler has a worker.",
        (("up", "max(octavo_worker_session_up)"),),
        "stat",
        4,
    ),
    Panel(
        "Running",
        "short",
        "octavo_requests_running: requests that hold a row.",
        (("running", "sum(octavo_requests_running)"),),
        "stat",
        4,
    ),
    Panel(
        "Waiting",
        "short",
        "octavo_requests_waiting: requests that wait for a row.",
        (("waiting", "sum(octavo_requests_waiting)"),),
        "stat",
        4,
    ),
    Panel(
        "Prefix hits",
        "percentunit",
        "octavo_prefix_hit_tokens_total of octavo_prefix_lookup_tokens_total.",
        (("of looked-up tokens", _HIT_RATIO),),
        "stat",
        4,
    ),
    Panel(
        "Worker restarts",
        "short",
        "octavo_worker_epoch_changes_total: sessions with a restarted worker, in the last hour.",
        (("in an hour", "sum(increase(octavo_worker_epoch_changes_total[1h]))"),),
        "stat",
        4,
    ),
    Panel(
        "KV blocks by state",
        "short",
        "octavo_kv_blocks, stacked, against octavo_kv_blocks_capacity: the states sum to the capacity.",
        (
            ("{{state}}", "sum by (state) (octavo_kv_blocks)"),
            ("capacity", "sum(octavo_kv_blocks_capacity)"),
        ),
        width=12,
        stacked=True,
        lines=("capacity",),
    ),
    Panel(
        "Sharing",
        "short",
        "octavo_kv_blocks_shared, and octavo_kv_block_refs less the active blocks: what sharing saves.",
        (("shared", "sum(octavo_kv_blocks_shared)"), ("saved", _SAVED)),
        width=12,
    ),
    Panel(
        "Prefix tokens",
        "short",
        "octavo_prefix_lookup_tokens_total and octavo_prefix_hit_tokens_total, a second.",
        (
            ("looked up", _rate("octavo_prefix_lookup_tokens_total")),
            ("hit", _rate("octavo_prefix_hit_tokens_total")),
        ),
    ),
    Panel(
        "Blocks a second",
        "ops",
        "octavo_kv_blocks_allocated_total, _freed_total and _evicted_total.",
        tuple((name, _rate(f"octavo_kv_blocks_{name}_total")) for name in ("allocated", "freed", "evicted")),
    ),
    Panel(
        "Slots of held blocks",
        "short",
        "octavo_kv_slots_allocated and octavo_kv_slots_filled: the difference is fragmentation.",
        (("allocated", "sum(octavo_kv_slots_allocated)"), ("filled", "sum(octavo_kv_slots_filled)")),
    ),
    Panel(
        "Requests",
        "short",
        "octavo_requests_running and octavo_requests_waiting by reason.",
        (
            ("running", "sum(octavo_requests_running)"),
            ("waiting: {{reason}}", "sum by (reason) (octavo_requests_waiting)"),
        ),
    ),
    Panel(
        "Requests ended",
        "reqps",
        "octavo_requests_total by outcome.",
        (("{{outcome}}", _rate("octavo_requests_total", by="outcome")),),
        stacked=True,
    ),
    Panel(
        "Tokens a second",
        "short",
        "octavo_generated_tokens_total, and octavo_prompt_tokens_total by source.",
        (
            ("generated", _rate("octavo_generated_tokens_total")),
            ("prompt: {{source}}", _rate("octavo_prompt_tokens_total", by="source")),
        ),
    ),
    Panel(
        "Time to first token",
        "s",
        "Quantiles of octavo_time_to_first_token_seconds.",
        _quantiles("octavo_time_to_first_token_seconds"),
    ),
    Panel(
        "Time between tokens",
        "s",
        "Quantiles of octavo_inter_token_latency_seconds.",
        _quantiles("octavo_inter_token_latency_seconds"),
    ),
    Panel(
        "Wait in the queue",
        "s",
        "Quantiles of octavo_queue_wait_seconds.",
        _quantiles("octavo_queue_wait_seconds"),
    ),
    Panel(
        "A step's time",
        "s",
        "Means of octavo_schedule_seconds, _step_forward_seconds, _step_gap_seconds and _worker_rpc_seconds.",
        tuple(
            (legend, _mean(f"octavo_{name}_seconds"))
            for legend, name in (
                ("schedule", "schedule"),
                ("forward", "step_forward"),
                ("device idle", "step_gap"),
                ("plan to result", "worker_rpc"),
            )
        ),
    ),
    Panel(
        "Preemption",
        "short",
        "octavo_preemptions_total and octavo_preempted_tokens_total (work thrown away), a second.",
        (
            ("sequences", _rate("octavo_preemptions_total")),
            ("tokens", _rate("octavo_preempted_tokens_total")),
        ),
    ),
    Panel(
        "Worker memory",
        "bytes",
        "octavo_worker_memory_bytes by use.",
        (("{{use}}", "sum by (use) (octavo_worker_memory_bytes)"),),
        stacked=True,
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON."""
    return {
        "uid": "octavo-kv-pool",
        "title": "Octavo: KV pool",
        "tags": ["octavo"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "panels": list(_placed()),
    }


def _placed() -> Iterator[dict[str, Any]]:
    x = y = row_height = 0
    for number, panel in enumerate(PANELS, start=1):
        height = 4 if panel.kind == "stat" else 8
        if x + panel.width > COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        yield _json(panel, number, {"x": x, "y": y, "w": panel.width, "h": height})
        x, row_height = x + panel.width, max(row_height, height)


def _json(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        mode = "normal" if panel.stacked else "none"
        defaults["custom"] = {
            "fillOpacity": 40 if panel.stacked else 8,
            "showPoints": "never",
            "stacking": {"mode": mode, "group": "A"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": [_as_line(name) for name in panel.lines]},
        "options": {},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(panel.queries)
        ],
    }


def _as_line(legend: str) -> dict[str, Any]:
    """A series drawn on its own, not on top of the stack."""
    properties = [
        {"id": "custom.stacking", "value": {"mode": "none", "group": "B"}},
        {"id": "custom.fillOpacity", "value": 0},
    ]
    return {"matcher": {"id": "byName", "options": legend}, "properties": properties}


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=2) + "\n"


def main() -> int:
    """Writes the file."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{FILE}: {len(PANELS)} panels\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes docs/metrics.md from the code: `python -m tools.metrics_docs`.

Owns the layout and the sentence on what to do about a metric; names, meanings and labels are those of the
services, alerts those of deploy/rules.py. Invariant: every metric of the three services has a row.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import Metric

from deploy.dashboards.every import DASHBOARDS
from deploy.rules import ALERTS, RECORDINGS
from gateway.metrics import Metrics
from gpu_worker.metrics import WorkerMetrics
from scheduler_svc.core.stats import Counters, PoolStats
from scheduler_svc.families import families
from scheduler_svc.metrics import ShellMetrics

FILE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
_SUFFIX = {"counter": "_total", "info": "_info"}
_UNITS = ("seconds", "bytes", "tokens", "ratio")
_HEAD = """# Metrics and alerts

Written by `python -m tools.metrics_docs` from the code of the services, the dashboards and the rules; a test
compares. Units are base units. The scheduler's metrics are at `http://127.0.0.1:9450/metrics`, the worker's
at its `--metrics-port`, the gateway's at `/metrics` of its own port. Pool gauges are worked out at each
scrape from one moment of the core, so none can be stuck; every series exists from the start, and no label
names a request, a tenant or a salt.

"""


def text() -> str:
    """The file's content."""
    scheduler = list(families(PoolStats(counters=Counters()), None, False, ShellMetrics()))
    worker = [metric for metric in WorkerMetrics().registry.collect() if metric.name.startswith("octavo")]
    gateway = Metrics().registry.collect()
    parts = [
        _HEAD,
        "## Of the scheduler\n",
        _table(scheduler),
        "\n## Of the worker\n",
        _table(worker),
        "\n## Of the gateway\n",
        _table(gateway),
        "\n## Alerts\n"
        "Rules: [deploy/prometheus-rules.yml](../deploy/prometheus-rules.yml), with a firing and a quiet "
        "case each in "
        "`make dashboards-test`.\n\n",
        _alerts(),
        "\n## Recorded series\n| name | meaning |\n|---|---|\n",
        *(f"| `{one.name}` | {one.meaning} |\n" for one in RECORDINGS),
    ]
    return "".join(parts)


def _table(metrics: Iterable[Metric]) -> str:
    head = "| name | type | unit | meaning | dashboard | alert |\n|---|---|---|---|---|---|\n"
    return head + "".join(_row(metric) for metric in metrics)


def _row(metric: Metric) -> str:
    labels = sorted({key for sample in metric.samples for key in sample.labels} - {"le"})
    shown = "{" + ",".join(labels) + "}" if labels else ""
    name = f"{metric.name}{_SUFFIX.get(metric.type, '')}"
    samples = {sample.name for sample in metric.samples}
    unit = next((unit for unit in _UNITS if f"_{unit}" in metric.name), "")
    boards = [
        board.title.removeprefix("Octavo: ")
        for board in DASHBOARDS
        if any(_asks(query, samples) for panel in board.panels for _, query in panel.queries)
    ]
    recorded = {one.name for one in RECORDINGS if _asks(one.expression, samples)}
    alerts = [one.name for one in ALERTS if _asks(one.expression, samples | recorded)]
    return (
        f"| `{name}{shown}` | {metric.type} | {unit} | {metric.documentation} | {', '.join(boards)} | "
        f"{', '.join(f'[{name}](#{name.lower()})' for name in alerts)} |\n"
    )


def _asks(expression: str, names: set[str]) -> bool:
    return bool(names & set(re.findall(r"octavo[\w:]+", expression)))


def _alerts() -> str:
    return "\n".join(
        f"### {one.name}\n"
        f"**{one.severity}**{f', after {one.hold}' if one.hold != '0m' else ''}. {one.meaning}\n\n"
        f"First move: {one.first_move}\n\n"
        f"`{one.expression}`\n"
        for one in ALERTS
    )


def main() -> int:
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

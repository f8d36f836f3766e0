"""The tables of docs/scheduler.md, from the code: `python -m tools.scheduler_docs [--write]`.

Owns their layout; knows no text around them. Invariant: a table that is up to date is left as it is.
"""

import sys
from pathlib import Path

from octavo.settings import flag_of
from scheduler_svc.config import Settings
from scheduler_svc.core.stats import Counters, PoolStats
from scheduler_svc.families import families
from scheduler_svc.metrics import ShellMetrics

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scheduler.md"


def settings_rows() -> list[str]:
    rows = []
    for name, field in Settings.model_fields.items():
        default = "required" if field.is_required() else f"`{field.default}`" if field.default != "" else ""
        rows.append(f"| `{flag_of(name)}` | {default} | {field.description} |")
    return rows


def metric_rows() -> list[str]:
    rows = []
    for metric in families(PoolStats(counters=Counters()), None, False, ShellMetrics()):
        suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
        labels = sorted({key for sample in metric.samples for key in sample.labels} - {"le"})
        shown = "{" + ",".join(labels) + "}" if labels else ""
        rows.append(f"| `{metric.name}{suffix}{shown}` | {metric.type} | {metric.documentation} |")
    return rows


def page(text: str) -> str:
    """The page with both tables as they ought to be."""
    lines, out = text.splitlines(), []
    tables = {"| flag | default | |": settings_rows(), "| name | type | |": metric_rows()}
    skipping = False
    for line in lines:
        skipping = skipping and line.startswith("|")
        if skipping:
            continue
        out.append(line)
        if line in tables:
            out += ["|---|---|---|", *tables[line]]
            skipping = True
    return "\n".join(out) + "\n"


def main() -> int:
    text = PAGE.read_text()
    wanted = page(text)
    if "--write" in sys.argv:
        PAGE.write_text(wanted)
    elif text != wanted:
        print("docs/scheduler.md is stale: python -m tools.scheduler_docs --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

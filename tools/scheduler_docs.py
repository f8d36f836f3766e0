"""The table of settings in docs/scheduler.md, from the code: `python -m tools.scheduler_docs [--write]`.

Owns its layout; knows no text around it. Invariant: a table that is up to date is left as it is.
"""

import sys
from pathlib import Path

from octavo.settings import flag_of
from scheduler_svc.config import Settings
from tools.doc_tables import renewed, run

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scheduler.md"


def settings_rows() -> list[str]:
    rows = []
    for name, field in Settings.model_fields.items():
        default = "required" if field.is_required() else f"`{field.default}`" if field.default != "" else ""
        rows.append(f"| `{flag_of(name)}` | {default} | {field.description} |")
    return rows


def page(text: str) -> str:
    """The page with its table of settings as it ought to be."""
    return renewed(text, {"| flag | default | |": settings_rows()})


if __name__ == "__main__":
    sys.exit(run(PAGE, page, "tools.scheduler_docs"))

"""Type-checks a dashboard's JSON against the types that Grafana publishes.

Owns the npm packages and the compiler's run; knows no panel. Invariant: without npm, or without its registry,
it fails and says so.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.processes import REPOSITORY

PACKAGES = ("@grafana/schema@11.6.0", "typescript@5.8.3")
FOLDER = REPOSITORY / "build" / "grafana-schema"


def problems(dashboard: dict[str, Any], folder: Path) -> str:
    """What the compiler says; empty when all is well."""
    _install()
    head = {name: value for name, value in dashboard.items() if name != "panels"}
    lines = [
        "import type { Dashboard, Panel } from '@grafana/schema';",
        f"const dashboard: Partial<Dashboard> = {json.dumps(head)};",
        f"const panels: Partial<Panel>[] = {json.dumps(dashboard['panels'])};",
        "import type { GraphFieldConfig } from '@grafana/schema';",
    ]
    for panel in dashboard["panels"]:
        if "custom" in panel["fieldConfig"]["defaults"]:
            custom = _enums(json.dumps(panel["fieldConfig"]["defaults"]["custom"]))
            lines.append(f"const custom{panel['id']}: GraphFieldConfig = {custom};")
    lines.insert(0, "import { StackingMode, VisibilityMode } from '@grafana/schema';")
    lines.append("export { dashboard, panels };")
    source = FOLDER / "dashboard.ts"
    source.write_text(_enums("\n".join(lines)))
    done = subprocess.run(
        ["node_modules/.bin/tsc", "--noEmit", "--strict", "--skipLibCheck", "--module", "esnext",
         "--moduleResolution", "bundler", "--target", "es2022", "dashboard.ts"],
        capture_output=True, text=True, check=False, cwd=FOLDER,
    )  # fmt: skip
    return done.stdout + done.stderr


def _enums(text: str) -> str:
    """Grafana's types are enumerations; a JSON file holds their values."""
    for name, value in (("StackingMode.Normal", "normal"), ("StackingMode.None", "none")):
        text = text.replace(f'"stacking": {{"mode": "{value}"', f'"stacking": {{"mode": {name}')
    return text.replace('"showPoints": "never"', '"showPoints": VisibilityMode.Never')


def _install() -> None:
    if (FOLDER / "node_modules/typescript").exists():
        return
    npm = shutil.which("npm")
    assert npm, "npm is missing: the dashboards' types come from the npm package @grafana/schema"
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "package.json").write_text('{"private": true, "type": "module"}')
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES],
        cwd=FOLDER, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]

"""All dashboards together.

Owns the list and the folder of their files; knows no panel. Invariant: every metric of the services is on a
panel (a test of the deployment compares them).
"""

from pathlib import Path

from deploy.dashboards import kv_capacity, service, step_pipeline
from deploy.dashboards.panel import Panel

FOLDER = Path(__file__).parents[1] / "grafana" / "dashboards"
DASHBOARDS = (kv_capacity.DASHBOARD, service.DASHBOARD, step_pipeline.DASHBOARD)


def panels() -> list[Panel]:
    """The panels of all dashboards."""
    return [panel for dashboard in DASHBOARDS for panel in dashboard.panels]

"""Dashboards, rules and metrics on a real Prometheus, fed by the real service under load.

Grafana itself is not run: its JSON is checked against its published types, every query is put to Prometheus,
and pictures are drawn from the same JSON (build/dashboards).
"""

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy import rules
from deploy.dashboards.every import DASHBOARDS
from deploy.dashboards.panel import Dashboard
from tests.dashboards.load import Load, start
from tests.dashboards.pictures import draw, drawn_from, fingerprint
from tests.dashboards.prometheus import Prometheus, prometheus, promtool
from tests.dashboards.schema import problems
from tests.e2e.processes import REPOSITORY, Processes
from tests.unit.deploy.rule_cases import CASES, Case

pytestmark = pytest.mark.prometheus
PICTURES = REPOSITORY / "build" / "dashboards"
SECONDS = 60.0
TROUBLE = {
    "OctavoDown", "OctavoNoWorker", "OctavoInvariantBroken", "OctavoStepsFail", "OctavoOddAnswers",
    "OctavoGatewayDown", "OctavoGatewayErrors",
}  # fmt: skip
HAPPENS = (
    "sum(octavo_prefix_hit_tokens_total)",
    "sum(octavo_kv_blocks_evicted_total)",
    "sum(octavo_kv_forks_total)",
    "sum(octavo_kv_cow_copies_total)",
    'sum(octavo_preemptions_total{mode="swap"})',
    'sum(octavo_kv_swap_bytes_total{direction="out"})',
    'sum(octavo_kv_swap_bytes_total{direction="in"})',
    'sum(octavo_requests_total{outcome="aborted"})',
    "sum(octavo_admission_rejections_total)",
    'sum(octavo_gateway_requests_total{route="/v1/chat/completions",code="200"})',
    'sum(octavo_gateway_requests_total{route="/v1/chat/completions",code="400"})',
    'sum(octavo_gateway_requests_total{code="disconnected"})',
)
"""What the loads must have brought about, else panels would be flat lines of zero."""


@dataclass
class Seat:
    server: Prometheus
    ports: dict[str, int]

    def value(self, query: str) -> float:
        (value,) = self.server.values(query)
        return float(value)


@pytest.fixture
async def loaded(processes: Processes, tiny_llama: Path, tmp_path: Path) -> AsyncIterator[Seat]:
    """Prometheus beside a service that has been under load for a while and still is."""
    services = await asyncio.to_thread(start, processes, tiny_llama)
    with prometheus(tmp_path, services.ports) as server:
        async with Load(services):
            await asyncio.sleep(SECONDS)
            yield Seat(server, services.ports)


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text: str = answer.read().decode()
    return text


async def test_under_load_every_panel_has_numbers(loaded: Seat) -> None:
    """Also: promtool finds nothing to say against any service's metrics, and no alert of trouble fires."""
    for port in loaded.ports.values():
        promtool("check", "metrics", text=await asyncio.to_thread(scraped, port))
    empty = []
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for legend, query in panel.queries:
                values = await asyncio.to_thread(loaded.server.values, query)
                if not values or all(value == "NaN" for value in values):
                    empty.append(f"{dashboard.title}: {panel.title}: {legend}: {values}")
    assert not empty, empty
    for happened in HAPPENS:
        assert await asyncio.to_thread(loaded.value, happened) > 0, happened
    for one in rules.RECORDINGS:
        assert loaded.server.values(one.name), one.name
    firing = {alert["labels"]["alertname"] for alert in loaded.server.get("alerts")["alerts"]}
    assert not firing & TROUBLE
    PICTURES.mkdir(parents=True, exist_ok=True)
    for dashboard in DASHBOARDS:
        file = PICTURES / dashboard.file_name.replace(".json", ".png")
        await asyncio.to_thread(draw, dashboard.json(), loaded.server, file, SECONDS)
        assert file.stat().st_size > 20_000


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: str(dashboard.uid))
def test_the_picture_in_the_docs_is_of_this_dashboard(dashboard: Dashboard) -> None:
    name = dashboard.file_name.replace(".json", ".png")
    file = REPOSITORY / "docs" / "pictures" / f"dashboard-{name}"
    assert drawn_from(file) == fingerprint(dashboard.json()), f"cp build/dashboards/{name} {file}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.alert))
@pytest.mark.parametrize("fires", [True, False], ids=["fires", "quiet"])
def test_an_alert_fires_when_it_should_and_only_then(case: Case, fires: bool, tmp_path: Path) -> None:
    (alert,) = [one for one in rules.ALERTS if one.name == case.alert]
    series = case.fires if fires else case.quiet
    expected = {
        "exp_labels": {"severity": alert.severity},
        "exp_annotations": {
            "summary": alert.meaning, "first_move": alert.first_move, "runbook": rules.RUNBOOK,
        },
    }  # fmt: skip
    test = {
        "rule_files": [str(rules.FILE)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    {
                        "eval_time": f"{case.at}m",
                        "alertname": alert.name,
                        "exp_alerts": [expected] if fires else [],
                    }
                ],
            }
        ],
    }
    labels = [name for name in series if name.startswith(("up{", "octavo_worker_session_up"))]
    if fires and labels:  # these alerts keep the labels of what they look at
        expected["exp_labels"] |= dict(re.findall(r'(job)="(\w+)"', labels[0]))
    file = tmp_path / "test.yml"
    file.write_text(json.dumps(test))
    promtool("test", "rules", str(file))


def test_the_rules_are_rules() -> None:
    promtool("check", "rules", str(rules.FILE))


def test_the_json_has_the_types_that_grafana_publishes(tmp_path: Path) -> None:
    for dashboard in DASHBOARDS:
        assert not problems(dashboard.json(), tmp_path)


def test_the_type_check_finds_what_is_wrong(tmp_path: Path) -> None:
    right = DASHBOARDS[0].json()
    for wrong in (
        {**right, "title": 5},
        {**right, "panels": [{**right["panels"][0], "gridPos": {"x": "left"}}]},
        {**right, "panels": [{**right["panels"][0], "titel": "x"}]},
    ):
        assert "error TS" in problems(wrong, tmp_path)

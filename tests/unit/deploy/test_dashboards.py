"""Dashboards and rules as text: written by the code, of real metrics, explained, complete."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import rules
from deploy.dashboards.every import DASHBOARDS, FOLDER, panels
from deploy.dashboards.panel import COLUMNS, SOURCE, Dashboard
from gateway.metrics import Metrics
from gpu_worker.metrics import WorkerMetrics
from scheduler_svc.core.stats import Counters, PoolStats
from scheduler_svc.families import families
from scheduler_svc.metrics import ShellMetrics
from tests.unit.deploy.rule_cases import CASES
from tools import metrics_docs

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
QUERIES = [query for panel in panels() for _, query in panel.queries]
EXPRESSIONS = [one.expression for one in (*rules.RECORDINGS, *rules.ALERTS)]


def exported() -> dict[str, set[str]]:
    """The samples of each metric that the three services export."""
    scheduler = families(PoolStats(counters=Counters()), None, False, ShellMetrics())
    metrics = [*scheduler, *WorkerMetrics().registry.collect(), *Metrics().registry.collect()]
    return {metric.name: {sample.name for sample in metric.samples} for metric in metrics}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: str(dashboard.uid))
def test_a_file_is_what_the_code_writes(dashboard: Dashboard) -> None:
    assert (FOLDER / dashboard.file_name).read_text(encoding="utf-8") == dashboard.text(), (
        "python -m deploy.dashboards"
    )


def test_there_are_no_other_files() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {d.file_name for d in DASHBOARDS}
    assert rules.FILE.read_text(encoding="utf-8") == rules.text(), "python -m deploy.rules"


@pytest.mark.parametrize("expression", [*QUERIES, *EXPRESSIONS])
def test_an_expression_asks_for_metrics_that_exist(expression: str) -> None:
    names = {name for samples in exported().values() for name in samples}
    recorded = {one.name for one in rules.RECORDINGS}
    asked = set(re.findall(r"octavo[\w:]+", expression)) - recorded
    assert asked <= names, asked - names
    assert asked or "up{" in expression or recorded & set(re.findall(r"octavo[\w:]+", expression))


def test_every_metric_of_the_three_services_is_on_a_panel() -> None:
    asked = set(re.findall(r"octavo_\w+", " ".join(QUERIES)))
    missing = {metric for metric, samples in exported().items() if not samples & asked}
    assert not missing, "put them on a panel (deploy/dashboards), then run its module and tools.metrics_docs"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: str(dashboard.uid))
def test_panels_do_not_overlap_and_are_explained(dashboard: Dashboard) -> None:
    taken: set[tuple[int, int]] = set()
    for panel, told in zip(dashboard.json()["panels"], dashboard.panels, strict=True):
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= COLUMNS
        taken |= cells
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        legends = [legend for legend, _ in told.queries]
        assert len(set(legends)) == len(legends)
        named = re.findall(r"octavo_\w+|(?<= )_\w+", told.description)
        for name in {name for _, query in told.queries for name in re.findall(r"octavo_\w+", query)}:
            short = re.sub(r"_(bucket|sum|count)$", "", name)
            assert any(short.endswith(one) for one in named), f"{told.title} does not name {short}"


def test_the_dashboards_and_rules_are_provisioned() -> None:
    provisioning = ROOT / "deploy/grafana/provisioning"
    source = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text(encoding="utf-8"))[
        "datasources"
    ][0]
    assert source["uid"] == SOURCE["uid"]
    folder = yaml.safe_load((provisioning / "dashboards/octavo.yml").read_text(encoding="utf-8"))[
        "providers"
    ][0]
    services = COMPOSE["services"]
    assert f"./deploy/grafana/dashboards:{folder['options']['path']}:ro" in services["grafana"]["volumes"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (
        json.loads((FOLDER / Path(home).name).read_text(encoding="utf-8"))["title"] == "Octavo: KV capacity"
    )
    (rule_file,) = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text(encoding="utf-8"))["rule_files"]
    assert f"./deploy/prometheus-rules.yml:{rule_file}:ro" in services["prometheus"]["volumes"]


def test_every_alert_has_a_case_in_which_it_fires_and_a_first_move() -> None:
    assert {case.alert for case in CASES} == {alert.name for alert in rules.ALERTS}
    for alert in rules.ALERTS:
        assert alert.severity in ("page", "ticket")
        assert len(alert.first_move) > 30
        assert re.fullmatch(r"Octavo[A-Za-z]+", alert.name)


def test_the_list_of_metrics_is_that_of_the_code() -> None:
    text = metrics_docs.FILE.read_text(encoding="utf-8")
    assert text == metrics_docs.text(), "python -m tools.metrics_docs"

"""What Grafana is given at its start, against what it reads: provisioning files, dashboards.

The fields are those of Grafana's configuration reference, "Provision Grafana" (apiVersion 1), and of its
readers, pkg/services/provisioning/{datasources,dashboards}/types.go. A field that is none of them is dropped
by Grafana without a word, which is why a wrong one must be found here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.dashboards.every import DASHBOARDS
from deploy.dashboards.panel import Dashboard

PROVISIONING = Path(__file__).resolve().parents[3] / "deploy" / "grafana" / "provisioning"
DATASOURCE: dict[str, type] = {
    "name": str, "type": str, "access": str, "orgId": int, "uid": str, "url": str, "user": str,
    "database": str, "basicAuth": bool, "basicAuthUser": str, "withCredentials": bool, "isDefault": bool,
    "jsonData": dict,
    "secureJsonData": dict, "version": int, "editable": bool,
}  # fmt: skip
PROMETHEUS: dict[str, type] = {
    "httpMethod": str, "timeInterval": str, "queryTimeout": str, "manageAlerts": bool, "prometheusType": str,
    "prometheusVersion": str, "cacheLevel": str, "incrementalQuerying": bool, "disableRecordingRules": bool,
}  # fmt: skip
PROVIDER: dict[str, type] = {
    "name": str, "orgId": int, "folder": str, "folderUid": str, "type": str, "disableDeletion": bool,
    "updateIntervalSeconds": int, "allowUiUpdates": bool, "options": dict,
}  # fmt: skip
OPTIONS: dict[str, type] = {"path": str, "foldersFromFilesStructure": bool}
LONGEST_UID = 40


def only(found: Mapping[str, Any], known: Mapping[str, type]) -> None:
    assert found.keys() <= known.keys(), found.keys() - known.keys()
    for name, value in found.items():
        assert type(value) is known[name], f"{name}: {value!r}"


def test_the_data_source_has_the_fields_that_grafana_reads() -> None:
    (file,) = (PROVISIONING / "datasources").iterdir()
    found = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert found.keys() == {"apiVersion", "datasources"}
    assert found["apiVersion"] == 1
    (source,) = found["datasources"]
    only(source, DATASOURCE)
    only(source["jsonData"], PROMETHEUS)
    assert source["type"] == "prometheus"
    assert source["access"] in ("proxy", "direct")


def test_the_provider_of_dashboards_has_the_fields_that_grafana_reads() -> None:
    (file,) = (PROVISIONING / "dashboards").iterdir()
    found = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert found.keys() == {"apiVersion", "providers"}
    assert found["apiVersion"] == 1
    (provider,) = found["providers"]
    only(provider, PROVIDER)
    only(provider["options"], OPTIONS)
    assert provider["type"] == "file"
    assert Path(provider["options"]["path"]).is_absolute()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: str(dashboard.uid))
def test_a_dashboard_can_be_provisioned(dashboard: Dashboard) -> None:
    """No id of a database, a uid that is short enough, a title that no other of the folder has."""
    board = dashboard.json()
    assert "id" not in board
    assert 0 < len(board["uid"]) <= LONGEST_UID
    assert [other.title for other in DASHBOARDS].count(board["title"]) == 1
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    with pytest.raises(AssertionError, match="editible"):
        only({"name": "x", "editible": True}, DATASOURCE)
    with pytest.raises(AssertionError, match="isDefault"):
        only({"isDefault": "yes"}, DATASOURCE)

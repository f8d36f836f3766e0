"""The containers as they are described: confined services, pinned images, requirements of the project."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.requirements import requirements
from scheduler_svc.config import load

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert not service.get("privileged")
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+(-cpu|-gpu)?", service["image"])


@pytest.mark.parametrize("name", ["worker", "worker-gpu"])
def test_only_the_inner_network_reaches_a_worker(name: str) -> None:
    assert list(SERVICES[name]["networks"]) == ["inside"]
    assert "ports" not in SERVICES[name]
    assert COMPOSE["networks"]["inside"]["internal"]


@pytest.mark.parametrize("name", ["scheduler", "scheduler-gpu"])
def test_the_stop_grace_period_covers_the_drain(name: str) -> None:
    flags = [flag for flag in SERVICES[name]["command"] if flag.startswith("--drain-seconds=")]
    drain = float(flags[0].partition("=")[2])
    assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= drain + 5
    worker = name.replace("scheduler", "worker")
    assert worker in SERVICES[name]["depends_on"]  # so that it is stopped after the scheduler


@pytest.mark.parametrize("name", ["scheduler", "scheduler-gpu"])
def test_a_schedulers_command_is_free_of_contradictions(name: str) -> None:
    assert load(SERVICES[name]["command"], {}).metrics_host == "0.0.0.0"


@pytest.mark.parametrize("name", ["scheduler", "worker"])
def test_an_image_is_pinned_and_not_roots(name: str) -> None:
    lines = (ROOT / f"deploy/{name}.Dockerfile").read_text().splitlines()
    base = next(line for line in lines if line.startswith("ARG PYTHON_IMAGE="))
    assert re.fullmatch(r"ARG PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+", base)
    assert "USER 10001:10001" in lines
    assert any(line.startswith("HEALTHCHECK") for line in lines)


def test_torch_and_the_version_are_those_of_the_project() -> None:
    makefile = re.search(r"^TORCH \?= (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert makefile
    assert f"ARG TORCH={makefile[1]}" in (ROOT / "deploy/worker.Dockerfile").read_text().splitlines()
    assert COMPOSE["x-build-cpu"]["args"]["TORCH"] == f"${{TORCH-{makefile[1]}}}"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    tags = [service["image"] for service in SERVICES.values() if service["image"].startswith("octavo-")]
    assert {tag.split(":")[1].split("-")[0] for tag in tags} == {version}


def test_requirements_come_from_the_project() -> None:
    project = ROOT / "pyproject.toml"
    scheduler = requirements(project, "scheduler", [])
    assert any(line.startswith("tokenizers") for line in scheduler)
    assert not any(line.startswith("torch") for line in scheduler)
    worker = requirements(project, "worker", ["triton", "transformers"])
    assert not any(line.startswith(("triton", "transformers")) for line in worker)
    with pytest.raises(KeyError, match="no-such"):
        requirements(project, "worker", ["no-such"])

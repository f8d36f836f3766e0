"""The containers as they are described: confined services, pinned images, requirements of the project."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.engine import without_device
from deploy.requirements import name_of, requirements
from scheduler_svc.config import load

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
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


@pytest.mark.parametrize("name", ["gateway", "gateway-gpu"])
def test_the_gateway_is_stopped_first_and_cannot_reach_a_worker(name: str) -> None:
    gateway = SERVICES[name]
    scheduler = name.replace("gateway", "scheduler")
    assert list(gateway["depends_on"]) == [scheduler]
    assert list(gateway["networks"]) == ["outside"]
    assert "outside" in SERVICES[scheduler]["networks"]
    drain = next(flag for flag in gateway["command"] if flag.startswith("--drain-seconds="))
    grace = float(gateway["stop_grace_period"].removesuffix("s"))
    assert grace >= float(drain.partition("=")[2]) + 5


def test_both_profiles_answer_under_the_same_names() -> None:
    """What the services call each other, whatever the profile: worker, scheduler, gateway."""
    for name in ("worker", "scheduler", "gateway"):
        networks = SERVICES[f"{name}-gpu"]["networks"]
        assert list(networks) == list(SERVICES[name]["networks"])
        assert all(network["aliases"] == [name] for network in networks.values())


def test_api_keys_come_from_a_file_that_only_the_gateway_gets() -> None:
    keyed = yaml.safe_load((ROOT / "deploy/api-keys.yml").read_text(encoding="utf-8"))
    assert set(keyed["services"]) == {"gateway", "gateway-gpu"}
    for service in keyed["services"].values():
        assert service["secrets"] == ["api-keys"]
        assert service["environment"]["OCTAVO_API_KEY_FILE"] == "/run/secrets/api-keys"
    assert keyed["secrets"]["api-keys"]["file"].startswith("${API_KEYS_FILE:?")


def test_every_service_can_be_told_a_collector_of_spans() -> None:
    traced = yaml.safe_load((ROOT / "deploy/tracing.yml").read_text(encoding="utf-8"))["services"]
    assert set(traced) == {name for name in SERVICES if name.startswith(("worker", "scheduler", "gateway"))}
    for service in traced.values():
        assert set(service) == {"environment"}
        assert service["environment"]["OCTAVO_OTLP_TRACES_ENDPOINT"].startswith("${OTLP_TRACES_ENDPOINT:?")
    for name in ("worker", "scheduler", "gateway"):
        install = (ROOT / f"deploy/{name}.Dockerfile").read_text(encoding="utf-8")
        assert f"python requirements.py {name} tracing " in install


def test_prometheus_scrapes_every_service() -> None:
    scraped = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped}
    assert targets == {
        "scheduler": ["scheduler:9450"],
        "worker": ["worker:9451"],
        "gateway": ["gateway:8000"],
    }


def pinned_in(path: str) -> set[str]:
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    return {name_of(line) for line in lines if not line.startswith("#")}


def test_every_package_of_the_tests_has_a_version() -> None:
    images, tests = pinned_in("deploy/constraints.txt"), pinned_in("tests/constraints.txt")
    assert not images & tests
    assert {name_of(line) for line in requirements(ROOT / "pyproject.toml", ["dev", "plots", "docs"])} - {
        "octavo"
    } <= images | tests


def test_every_package_of_the_images_has_a_version() -> None:
    pinned = pinned_in("deploy/constraints.txt")
    needed = {
        name_of(line)
        for extra in ("scheduler", "worker", "gateway", "tracing")
        for line in requirements(ROOT / "pyproject.toml", [extra])
    }
    assert needed - {"torch", "triton"} <= pinned


@pytest.mark.parametrize("name", ["gateway", "scheduler", "worker"])
def test_an_image_is_pinned_and_not_roots(name: str) -> None:
    lines = (ROOT / f"deploy/{name}.Dockerfile").read_text(encoding="utf-8").splitlines()
    base = next(line for line in lines if line.startswith("ARG PYTHON_IMAGE="))
    assert re.fullmatch(r"ARG PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+", base)
    assert "USER 10001:10001" in lines
    assert any(line.startswith("HEALTHCHECK") for line in lines)


def test_torch_and_the_version_are_those_of_the_project() -> None:
    makefile = re.search(r"^TORCH \?= (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert makefile
    assert (
        f"ARG TORCH={makefile[1]}"
        in (ROOT / "deploy/worker.Dockerfile").read_text(encoding="utf-8").splitlines()
    )
    assert COMPOSE["x-build-cpu"]["args"]["TORCH"] == f"${{TORCH-{makefile[1]}}}"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    tags = [service["image"] for service in SERVICES.values() if service["image"].startswith("octavo-")]
    assert {tag.split(":")[1].split("-")[0] for tag in tags} == {version}


def test_requirements_come_from_the_project() -> None:
    project = ROOT / "pyproject.toml"
    scheduler = requirements(project, ["scheduler", "tracing"])
    assert any(line.startswith("opentelemetry-sdk") for line in scheduler)
    assert any(line.startswith("tokenizers") for line in scheduler)
    assert not any(line.startswith("torch") for line in scheduler)
    worker = requirements(project, ["worker"], ["triton", "transformers"])
    assert not any(line.startswith(("triton", "transformers")) for line in worker)
    with pytest.raises(KeyError, match="no-such"):
        requirements(project, ["worker"], ["no-such"])


def test_a_resolved_profile_without_its_device_is_the_same_on_a_cpu() -> None:
    resolved = (
        "services:\n  worker-gpu:\n    depends_on: {}\n    deploy:\n      resources:\n        reservations:\n"
        "          devices:\n          - capabilities:\n            - gpu\n    environment:\n"
        "      OCTAVO_DEVICE: cuda\n  other:\n    image: x\n"
    )
    assert yaml.safe_load(without_device(resolved)) == {
        "services": {
            "worker-gpu": {"depends_on": {}, "environment": {"OCTAVO_DEVICE": "cpu"}},
            "other": {"image": "x"},
        }
    }

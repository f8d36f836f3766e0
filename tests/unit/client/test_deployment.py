"""What octavo doctor says of a deployment that is not as it should be."""

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from octavo_client import deployment, diagnosis
from octavo_client.finding import Finding, Level
from tests.fakes.fake_worker import FakeWorker


class _Pages(BaseHTTPRequestHandler):
    """Answers each path with what `pages` has for it."""

    pages: ClassVar[dict[str, tuple[int, Any]]] = {}

    def do_GET(self) -> None:
        status, body = self.pages.get(self.path.partition("?")[0], (404, {}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_words: object) -> None:
        """Quiet."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer here is one for being late."""
    monkeypatch.setattr(deployment, "_SECONDS", 60.0)


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def target(job: str, health: str = "up", error: str = "") -> dict[str, Any]:
    scraped = f"http://{job}:9450/metrics"
    return {"labels": {"job": job}, "health": health, "lastError": error, "scrapeUrl": scraped}


def prometheus_with(*targets: dict[str, Any], sessions: int = 1) -> None:
    _Pages.pages = {
        "/api/v1/targets": (200, {"status": "success", "data": {"activeTargets": list(targets)}}),
        "/api/v1/query": (200, {"status": "success", "data": {"result": [{}] * sessions}}),
    }


def failures(found: list[Finding]) -> dict[str, str]:
    return {one.what: one.detail for one in found if one.level is Level.FAIL}


def test_a_prometheus_that_scrapes_all_is_well(url: str) -> None:
    prometheus_with(target("scheduler"), target("worker"), target("gateway"))
    found = list(deployment.prometheus(url))
    assert [one.level for one in found] == [Level.OK] * 3


def test_a_prometheus_that_misses_one_or_cannot_reach_it_is_told(url: str) -> None:
    prometheus_with(target("scheduler", "down", "connection refused"), sessions=0)
    found = failures(list(deployment.prometheus(url)))
    assert "no job 'worker'" in found["scrape worker"]
    assert "octavo_worker_session_up" in found["scrape scheduler"]
    details = [one.detail for one in deployment.prometheus(url) if one.what == "scrape scheduler"]
    assert any("connection refused" in detail for detail in details)


@pytest.mark.parametrize("base", ["", "http://127.0.0.1:1", "nonsense"])
def test_what_is_no_prometheus_is_told(url: str, base: str) -> None:
    _Pages.pages = {}
    (one,) = deployment.prometheus(base or url)
    assert one.level is Level.FAIL
    assert "no address of Prometheus" in one.detail


def test_a_gateway_that_is_not_ready_says_why(url: str) -> None:
    _Pages.pages = {"/health": (503, {"error": {"message": "the scheduler is up, but no worker is ready"}})}
    (one,) = deployment.gateway(url)
    assert (one.level, "no worker is ready" in one.detail) == (Level.FAIL, True)
    _Pages.pages = {"/health": (200, {"status": "ok"})}
    (one,) = deployment.gateway(url)
    assert one.level is Level.OK


def test_a_named_scheduler_that_is_not_there_is_a_failure() -> None:
    found = failures(list(deployment.services("127.0.0.1:1", "127.0.0.1:1")))
    assert "is it started" in found["scheduler"]
    assert "is the worker running" in found["worker"]


def test_a_port_of_metrics_is_recognised() -> None:
    one = deployment._scheduler("127.0.0.1:9450", "nobody answers there", None, named=True)
    assert "9450 is a port of metrics, not of gRPC; requests go to 7450" in one.detail


def test_a_scheduler_without_a_worker_is_told_from_one_that_is_away() -> None:
    missing = "the scheduler is up, but no worker is ready"
    one = deployment._scheduler("127.0.0.1:7450", missing, None, named=True)
    assert one.level is Level.WARN
    assert "--worker name its address" in one.detail


async def test_the_worker_that_answers_is_compared_with_the_scheduler_s() -> None:
    fake = FakeWorker()
    address = await fake.start()
    try:
        said, wrong = await asyncio.to_thread(deployment._capacity, address)
    finally:
        await fake.die()
    assert said is not None
    assert not wrong
    epoch = f"{said.worker_epoch:016x}"
    assert deployment._together(epoch, [(address, epoch)], named=True).level is Level.OK
    other = deployment._together("00000000000000aa", [(address, epoch)], named=True)
    assert other.level is Level.FAIL
    assert "its --worker names another worker" in other.detail


def test_a_kernel_that_nobody_could_compile_has_its_remedy() -> None:
    why = "fallback: no C++ compiler runs (c++, g++, clang++); install g++ or clang++, or set CXX"
    one = deployment.kernel("paged_attention", "torch", why)
    assert one.level is Level.WARN
    assert "install g++" in one.detail


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({"tokenizer.json": "{}", "model.safetensors": ""}, "config.json"),
        ({"config.json": "{}", "model.safetensors": ""}, "lacks tokenizer.json"),
        ({"config.json": "{", "tokenizer.json": "{}", "model.safetensors": ""}, "is no JSON"),
        ({"config.json": "{}", "tokenizer.json": "{}"}, "has no weights"),
    ],
)
def test_a_model_that_is_not_whole_is_told(tmp_path: Path, files: dict[str, str], wrong: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (one,) = diagnosis.model_folder(str(tmp_path))
    assert one.level is Level.FAIL
    assert wrong in one.detail


def test_a_whole_model_is_well(tiny_llama: Path) -> None:
    (one,) = diagnosis.model_folder(str(tiny_llama))
    assert one.level is Level.OK

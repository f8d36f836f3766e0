"""Fixtures for tests with real processes, and their logs in the report of a failed test.

Owns the lifetime of processes and model folders; knows no scenario. Invariant: what a fixture starts, its
teardown ends.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import Processes
from tests.fixtures.tiny_model import TinyShape, write_tiny_model

_LIVE: list[Processes] = []
_LONGEST_FOLDER = 80
"""Of a socket's path, Linux takes 107 bytes."""


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a 2-layer random Llama."""
    return write_tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a 2-layer random Qwen3 with tied embeddings."""
    return write_tiny_model(tmp_path_factory.mktemp("qwen3"), TinyShape("qwen3", seed=3, tie=True))


@pytest.fixture
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Processes of one test."""
    yield from _processes(tmp_path_factory)


@pytest.fixture(scope="module")
def shared_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Processes of one module."""
    yield from _processes(tmp_path_factory)


def _processes(factory: pytest.TempPathFactory) -> Iterator[Processes]:
    folder = factory.mktemp("run")
    short = (
        Path(tempfile.mkdtemp(prefix="octavo-", dir="/tmp")) if len(str(folder)) > _LONGEST_FOLDER else None
    )
    live = Processes(short or folder)
    _LIVE.append(live)
    yield live
    live.close()
    _LIVE.remove(live)
    if short is not None:
        shutil.rmtree(short)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for processes in _LIVE:
            report.sections += [(f"log of {name}", text) for name, text in processes.logs()]

"""What comes before PyTorch is imported: the device is woken where it may be used, and settings are read."""

import logging
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import gpu_worker.__main__
from gpu_worker import life, wake
from tests.fixtures.programs import printed_by


class StubDriver:
    """libcuda.so.1: says what it is asked; no device where `answer` is not 0."""

    def __init__(self, answer: int = 0) -> None:
        self.answer, self.calls = answer, list[str]()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> int:
            self.calls.append(name)
            return self.answer

        return call


@pytest.mark.parametrize(
    ("answer", "calls"),
    [(0, ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]), (100, ["cuInit"])],
)
def test_the_driver_is_asked_for_the_first_device(
    monkeypatch: pytest.MonkeyPatch, answer: int, calls: list[str]
) -> None:
    driver = StubDriver(answer)
    monkeypatch.setattr(wake.ctypes, "CDLL", lambda name: driver)
    wake._make_context()
    assert driver.calls == calls


def test_without_a_driver_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "_DRIVER", "libno-such-driver.so.1")
    wake.wake_device()
    for thread in [one for one in threading.enumerate() if one.name == "wake-device"]:
        thread.join()


@pytest.fixture
def left_as_it_was() -> Iterator[None]:
    """A worker's `main` takes its process' signals, with which no later test would ever be interrupted, and
    sets the level of its log.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("left_as_it_was")
@pytest.mark.parametrize(("device", "woken"), [("cpu", 0), ("auto", 1), ("cuda", 1)])
def test_a_worker_on_a_cpu_wakes_no_device(monkeypatch: pytest.MonkeyPatch, device: str, woken: int) -> None:
    calls = list[SimpleNamespace]()
    monkeypatch.setattr(wake, "wake_device", lambda: calls.append(SimpleNamespace()))
    monkeypatch.setattr(life, "run", lambda settings, clock: 0)
    monkeypatch.setattr(gpu_worker.__main__, "configure", lambda service: None)
    assert gpu_worker.__main__.main(["--model", "m", "--device", device]) == 0
    assert len(calls) == woken


def test_settings_are_read_before_anything_large_is_imported() -> None:
    code = "import sys, gpu_worker.__main__; print({'torch', 'grpc', 'transformers'} & set(sys.modules))"
    assert printed_by(code) == "set()"

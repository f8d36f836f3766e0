"""Where the seconds of a start go: parts in order, from the process' beginning on."""

import sys
import time
from types import SimpleNamespace

import pytest

from gpu_worker import start_clock
from gpu_worker.start_clock import StartClock
from tests.fixtures.programs import printed_by


def test_parts_follow_one_another_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    at = iter([10.0, 10.5, 13.0, 13.25])
    # Its own name alone: whatever else runs in this process goes on reading the clock.
    monkeypatch.setattr(start_clock, "time", SimpleNamespace(monotonic=lambda: next(at)))
    clock = StartClock()
    for part in ("imports", "weights", "graphs"):
        clock.done(part)
    assert str(clock) == "3.25 s: imports 0.50, weights 2.50, graphs 0.25"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_the_first_part_begins_with_the_process() -> None:
    code = (
        "from gpu_worker.start_clock import _age; import time; a = _age(); time.sleep(0.2); print(a, _age())"
    )
    began = time.monotonic()
    printed = printed_by(code)
    whole = time.monotonic() - began
    first, second = map(float, printed.split())
    assert 0 <= first <= second - 0.2
    assert second <= whole + 0.02

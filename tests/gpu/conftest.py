"""A run on a CUDA device: the order of its tests, and at its end what each file did and how long it took.

Owns both; knows no test. Invariant: runs that hold tests of other folders too are left as they are.
"""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

_OUTCOMES = ("passed", "failed", "error", "skipped")
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start services take longest, so they come first where several processes run tests."""
    if all(item.path.parent == _HERE for item in items):
        items.sort(key=lambda item: "processes" not in getattr(item, "fixturenames", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a file; seconds are those of its tests together, which may run in several processes."""
    seconds: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for outcome in ("", *_OUTCOMES):
        for report in terminalreporter.stats.get(outcome, []):
            file = report.nodeid.split("::")[0]
            if not file.startswith("tests/gpu/"):
                continue
            seconds[file] += getattr(report, "duration", 0.0)
            if outcome:
                counts[file][outcome] += 1
    if not seconds:
        return
    terminalreporter.section("files on the CUDA device")
    for file in sorted(seconds, key=lambda name: -seconds[name]):
        told = ", ".join(f"{counts[file][one]} {one}" for one in _OUTCOMES if counts[file][one])
        terminalreporter.write_line(f"{seconds[file]:8.1f} s  {file}: {told}")

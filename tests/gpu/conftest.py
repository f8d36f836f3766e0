"""The end of a run on a CUDA device: what each file did and how long it took."""

from collections import Counter, defaultdict

import pytest

_OUTCOMES = ("passed", "failed", "error", "skipped")


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

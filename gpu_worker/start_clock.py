"""Where the seconds of a start go.

Owns the parts and their order; knows none of them. Invariant: parts follow one another without a gap, from
the start of the process on, so their sum is the start.
"""

import os
import time
from pathlib import Path


class StartClock:
    """The first part begins with this process, as far as the system tells, or here."""

    def __init__(self, with_process: bool = False) -> None:
        self._last = time.monotonic() - (_age() if with_process else 0.0)
        self._parts: list[tuple[str, float]] = []

    def done(self, part: str) -> None:
        """What took the time since the last call."""
        now = time.monotonic()
        self._parts.append((part, now - self._last))
        self._last = now

    def __str__(self) -> str:
        total = sum(seconds for _, seconds in self._parts)
        return f"{total:.2f} s: " + ", ".join(f"{part} {seconds:.2f}" for part, seconds in self._parts)


def _age() -> float:
    """Seconds since this process began; 0 where /proc does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[_START_TIME])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return 0.0


_START_TIME = 19
"""Where proc(5)'s field 22, starttime, lies behind the name of the command."""

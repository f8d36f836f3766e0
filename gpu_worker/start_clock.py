"""Where the seconds of a start go.

Owns the parts and their order; knows none of them. Invariant: parts follow one another without a gap, from
the start of the process on, so their sum is the start.
"""

import time

import psutil  # type: ignore[import-untyped]


class StartClock:
    """since: where the first part begins, in seconds since the epoch; None: with this process."""

    def __init__(self, since: float | None = None) -> None:
        self._last = psutil.Process().create_time() if since is None else since
        self._parts: list[tuple[str, float]] = []

    def done(self, part: str) -> None:
        """What took the time since the last call."""
        now = time.time()
        self._parts.append((part, now - self._last))
        self._last = now

    def __str__(self) -> str:
        total = sum(seconds for _, seconds in self._parts)
        return f"{total:.2f} s: " + ", ".join(f"{part} {seconds:.2f}" for part, seconds in self._parts)

"""What a supervisor tells its owner, as frozen values.

Owns the shape of the news; knows no terminal. Invariant: each Started is followed by one Died or Stopped.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Started:
    """A child process began; attempt 1 is its first."""

    name: str
    pid: int
    attempt: int


@dataclass(frozen=True)
class Serving:
    """A child printed its serving line; seconds since its start."""

    name: str
    listen: str
    metrics_port: int
    seconds: float


@dataclass(frozen=True)
class Line:
    """One line that a child wrote, without its end."""

    name: str
    text: str


@dataclass(frozen=True)
class Died:
    """A child ended unasked and starts again in `restart_in` seconds; None: it does not."""

    name: str
    how: str
    restart_in: float | None
    last_line: str


@dataclass(frozen=True)
class Stopped:
    """A child ended because it was asked to."""

    name: str
    how: str


News = Started | Serving | Line | Died | Stopped

"""What a check of `octavo doctor` has found.

Owns its shape; knows no check. Invariant: FAIL means that something cannot work as it is, and its detail says
what to do.
"""

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    OK = "ok"
    NOTE = "note"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """silent: the address that was asked and did not answer, though nobody named it; empty: none."""

    level: Level
    what: str
    detail: str
    silent: str = ""

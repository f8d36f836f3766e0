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
    level: Level
    what: str
    detail: str

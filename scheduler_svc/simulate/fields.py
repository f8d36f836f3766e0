"""Fields of one line of a trace, checked.

Owns the checks of kind and range and their wording; does not know formats. Invariant: a value that is
returned is of its kind and within its limits.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from scheduler_svc.core.plan import Int32Array
from scheduler_svc.simulate.trace import TraceError


@dataclass(frozen=True, slots=True)
class Fields:
    """where: file and line, for messages."""

    where: str
    values: dict[str, Any]

    def error(self, name: str, value: object, limit: str) -> TraceError:
        return TraceError(f"{self.where}: {name} {value}: must be {limit}")

    def integer(self, name: str, low: int, high: int) -> int:
        """Raises TraceError, as all of these do."""
        value = self._given(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(name, repr(value), f"a whole number in {low}..{high}")
        return value

    def integer_text(self, name: str, low: int, high: int) -> int:
        text = str(self._given(name))
        value = int(text) if text.isascii() and text.isdigit() else low - 1
        if not low <= value <= high:
            raise self.error(name, repr(text), f"a whole number in {low}..{high}")
        return value

    def number(self, name: str, low: float) -> float:
        value = self._given(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < math.inf:
            raise self.error(name, repr(value), f"a number of at least {low}")
        return float(value)

    def text(self, name: str) -> str:
        value = self._given(name)
        if not isinstance(value, str):
            raise self.error(name, repr(value), "text")
        return value

    def integers(self, name: str, low: int, high: int) -> Int32Array:
        """[n]"""
        value = self._given(name)
        good = isinstance(value, list) and all(type(item) is int and low <= item <= high for item in value)
        if not good:
            raise self.error(name, str(value)[:40], f"a list of whole numbers in {low}..{high}")
        return np.array(value, np.int32)

    def objects(self, name: str) -> Iterator["Fields"]:
        value = self._given(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(name, str(value)[:40], "a list of objects")
        return (Fields(f"{self.where} {name}[{i}]", item) for i, item in enumerate(value))

    def _given(self, name: str) -> Any:
        if name not in self.values:
            raise TraceError(f"{self.where}: {name} is missing")
        return self.values[name]

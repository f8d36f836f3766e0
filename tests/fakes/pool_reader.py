"""Reads the pool page's stream as a browser does, in Python.

Owns the told state; shares no code with the writer. Invariant: what it holds came from updates alone.
"""

import base64
import json
from collections.abc import Iterator
from typing import Any

BITS = 7


class PoolReader:
    """`apply` takes one update. cells: [flags, fill, owner] of each block."""

    def __init__(self) -> None:
        self.number = 0
        self.whole = False
        self.pool: dict[str, Any] = {}
        self.cells: list[tuple[int, int, int]] = []
        self.sequences: dict[int, list[float]] = {}
        self.ids: dict[int, str] = {}
        self.order: list[int] = []
        self.tables: dict[int, list[int]] = {}
        self.events: list[dict[str, Any]] = []
        self.missed = 0

    def apply(self, text: str) -> None:
        update = json.loads(text)
        assert update["n"] == self.number + 1
        self.number, self.whole = update["n"], update["whole"]
        if "pool" in update:
            self.pool = update["pool"]
            self.cells = [(0, 0, 0)] * self.pool["blocks"]
            self.tables = {}
        for row in update.get("sequences", {}).get("set", []):
            self.sequences[row[0]] = row
        self.ids |= {int(seq): name for seq, name in update.get("sequences", {}).get("ids", {}).items()}
        for seq in update.get("sequences", {}).get("gone", []):
            del self.sequences[seq], self.ids[seq]
        self.order = update.get("order", self.order)
        for seq in update.get("tables", {}).get("gone", []):
            del self.tables[seq]
        for seq, start, blocks in update.get("tables", {}).get("set", []):
            table = self.tables.setdefault(seq, [])
            assert start <= len(table)
            table[start:] = blocks
        self.events += update.get("events", [])
        self.missed += update.get("missed", 0)
        self._blocks(base64.b64decode(update.get("blocks", "")))

    def _blocks(self, data: bytes) -> None:
        at, numbers = 0, list(_numbers(data))
        assert len(numbers) % 5 == 0
        for i in range(0, len(numbers), 5):
            skipped, length, *cell = numbers[i : i + 5]
            at += skipped
            assert at + length <= len(self.cells)
            self.cells[at : at + length] = [(cell[0], cell[1], cell[2])] * length
            at += length


def _numbers(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += BITS
        if not byte & 0x80:
            yield value
            value = shift = 0
    assert not shift

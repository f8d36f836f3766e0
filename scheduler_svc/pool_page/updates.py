"""What one viewer is told next: the difference between a sample and what it has been told before.

Owns the form of an update and its bound; knows neither HTTP nor the engine. Invariant: a viewer that applies
every update of a stream, in order, has exactly the sample of the last one that says it is whole; and however
long a viewer did not read, what waits for it is one such difference, never a queue of them.
"""

import json
from typing import Any

import numpy as np

from scheduler_svc.core.plan import Int32Array, Int64Array
from scheduler_svc.pool_page.events import Event
from scheduler_svc.pool_page.packing import Columns, pack
from scheduler_svc.pool_page.sample import Listed, Sample

MAX_CHARACTERS = 64_000
"""Of an update, all in ASCII; what does not fit comes with the next."""
_EVENT_CHARACTERS = 8_000
_LISTED_CHARACTERS = 20_000
_TABLE_CHARACTERS = 12_000
_BLOCK_CHARACTERS = 20_000
"""Kept for blocks whatever else there is."""
_COUNTERS = (
    "blocks_allocated", "blocks_freed", "blocks_evicted", "prefix_lookup_tokens", "prefix_hit_tokens",
    "recompute_hit_tokens", "preemptions", "preempted_tokens", "generated_tokens", "prompt_tokens_computed",
)  # fmt: skip
_GAUGES = (
    "blocks_free", "blocks_evictable", "blocks_active", "blocks_fenced", "blocks_shared", "block_refs",
    "slots_allocated", "slots_filled", "running", "waiting", "preempted", "in_flight", "max_rows",
    "host_blocks", "host_blocks_free", "swapped",
)  # fmt: skip


class Viewer:
    """The told state of one stream."""

    def __init__(self) -> None:
        self._session: str | None = None
        self._columns: Columns = np.zeros((0, 3), np.uint32)
        self._listed: dict[int, Listed] = {}
        self._ids: set[int] = set()
        self._tables: dict[int, Int32Array] = {}
        self._number = 0

    def update(self, sample: Sample, events: list[Event], missed: int) -> str:
        """The next update, one line of JSON of at most MAX_CHARACTERS."""
        self._number += 1
        message: dict[str, Any] = {"n": self._number, "t": round(sample.time, 3)}
        if self._session != sample.session:
            self._begin(sample)
            message["pool"] = {
                "session": sample.session, "model": sample.model[:200], "blocks": sample.num_blocks,
                "block_size": sample.block_size, "bytes_per_block": sample.bytes_per_block,
            }  # fmt: skip
        stats = sample.stats
        message["gauges"] = [getattr(stats, name) for name in _GAUGES]
        message["counters"] = [getattr(stats.counters, name) for name in _COUNTERS]
        self._tell_events(events, missed, message)
        whole = self._tell_listed(sample, message)
        whole &= self._tell_tables(sample, message)
        whole &= self._tell_blocks(sample, message)
        message["whole"] = whole
        return _text(message)

    def _begin(self, sample: Sample) -> None:
        """All that was told of blocks is void: every block is empty now, for both sides."""
        self._session = sample.session
        self._columns = np.zeros((sample.num_blocks, 3), np.uint32)
        self._tables = {}

    def _tell_events(self, events: list[Event], missed: int, message: dict[str, Any]) -> None:
        """The newest ones; the others are counted."""
        left, kept = _EVENT_CHARACTERS, len(events)
        while kept and (left := left - len(_text(events[kept - 1])) - 1) >= 0:
            kept -= 1
        if kept < len(events):
            message["events"] = events[kept:]
        if missed + kept:
            message["missed"] = missed + kept

    def _tell_listed(self, sample: Sample, message: dict[str, Any]) -> bool:
        now = {one.seq: one for one in sample.listed}
        gone = [seq for seq in self._listed if seq not in now]
        for seq in gone:
            del self._listed[seq]
            self._ids.discard(seq)
        changed: list[list[float]] = []
        ids: dict[int, str] = {}
        left = _LISTED_CHARACTERS
        for seq, one in now.items():
            new_id = sample.ids.get(seq, "") if seq not in self._ids else None
            if self._listed.get(seq) == one and new_id is None:
                continue
            row = [*one[:-1], round(one.arrival, 3)]
            left -= len(_text(row)) + 1 + (len(_text(new_id)) + 24 if new_id is not None else 0)
            if left < 0:
                message["sequences"] = {"set": changed, "ids": ids, "gone": gone}
                return False
            changed.append(row)
            self._listed[seq] = one
            if new_id is not None:
                ids[seq] = new_id
                self._ids.add(seq)
        if changed or gone:
            message["sequences"] = {"set": changed, "ids": ids, "gone": gone}
        order = [one.seq for one in sample.listed]
        message["order"] = order
        return True

    def _tell_tables(self, sample: Sample, message: dict[str, Any]) -> bool:
        """Of each table the part that differs from what was told, from its first change on."""
        gone = [seq for seq in self._tables if seq not in sample.tables]
        for seq in gone:
            del self._tables[seq]
        told: list[list[Any]] = []
        left = _TABLE_CHARACTERS
        for seq, table in sample.tables.items():
            known = self._tables.get(seq)
            start = _common(known, table) if known is not None else 0
            if known is not None and start == len(table) == len(known):
                continue
            room = max(1, (left - 40) // 8)
            part = table[start : start + room]
            told.append([seq, start, part.tolist()])
            self._tables[seq] = table[: start + len(part)]
            left -= len(_text(told[-1])) + 1
            if left < 200:
                break
        if told or gone:
            message["tables"] = {"set": told, "gone": gone}
        return all(np.array_equal(self._tables.get(seq, ()), table) for seq, table in sample.tables.items())

    def _tell_blocks(self, sample: Sample, message: dict[str, Any]) -> bool:
        columns = np.column_stack((sample.flags, sample.fill, sample.owner))
        changed: Int64Array = np.flatnonzero((columns != self._columns).any(1))
        room = max(_BLOCK_CHARACTERS, MAX_CHARACTERS - len(_text(message)) - 200)
        text, count = pack(changed, columns, room)
        if count:
            told = changed[:count]
            self._columns[told] = columns[told]
            message["blocks"] = text
        return count == len(changed)


def _common(known: Int32Array, table: Int32Array) -> int:
    """Leading entries that both have."""
    length = min(len(known), len(table))
    differs = np.flatnonzero(known[:length] != table[:length])
    return int(differs[0]) if len(differs) else length


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))

"""What happens to blocks and sequences, as it happens: a short log for the viewers.

Owns the log and the comparison of two samples; knows no viewer. Invariant: events are numbered without gaps,
and a reader is told how many it missed.

Copies, swaps, forks, admissions and ends come from the plans and notices themselves, and so are all told.
Which blocks were hit or evicted, and who was preempted, is read off two samples; how many is counted by the
core.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from scheduler_svc.core.plan import Int64Array, Notices, StepPlan
from scheduler_svc.core.stats import BlockState
from scheduler_svc.pool_page.sample import ID_CHARACTERS, Sample

KEPT = 512
NAMED_BLOCKS = 64
Event = dict[str, Any]


class EventLog:
    """Written by the loop's thread and by whoever takes a sample; `since` may be called by any thread.

    id_of: the request id of a sequence, empty if it is not live. clock: the engine's.
    """

    def __init__(self, clock: Callable[[], float], id_of: Callable[[int], str]) -> None:
        self._clock = clock
        self._id_of = id_of
        self._events: deque[tuple[int, Event]] = deque(maxlen=KEPT)
        self._last = 0

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._last

    def since(self, number: int) -> tuple[list[Event], int]:
        """The events after this number that are still kept, and how many are not."""
        found = [(at, event) for at, event in tuple(self._events) if at > number]
        newest = found[-1][0] if found else number
        return [event for _, event in found], newest - number - len(found)

    # What the engine tells

    def planned(self, plan: StepPlan) -> None:
        """A plan has been made."""
        if len(plan.copy_pairs):
            pairs = plan.copy_pairs[:NAMED_BLOCKS]
            self._add("copy", n=len(plan.copy_pairs), pairs=pairs.tolist())
        for kind, pairs in (("swap_out", plan.swap_out_pairs[:, 0]), ("swap_in", plan.swap_in_pairs[:, 1])):
            if len(pairs):
                self._add(kind, n=len(pairs), blocks=_some(pairs.astype(np.int64)))
        for first, count in _forks(plan):
            self._add_of(first, "fork", n=count)

    def noticed(self, notices: Notices) -> None:
        """Sequences were admitted or ended."""
        for admitted in notices.admitted:
            self._add_of(admitted.seq_id, "admitted", cached=admitted.cached_prompt_tokens)
        for finished in notices.finished:
            self._add_of(finished.seq_id, "ended", reason=finished.reason.value, output=finished.output_len)

    # What two samples tell

    def compare(self, before: Sample, after: Sample) -> None:
        """Adds what can be seen between two samples of one session."""
        if before.session != after.session:
            self._add("session", up=bool(after.session))
            return
        same = (before.content == after.content) & (after.content != 0)
        idle = (before.flags & 3) == BlockState.EVICTABLE
        hit = np.flatnonzero(same & (after.flags >> 3 > before.flags >> 3))
        if len(hit):
            self._add("hit", n=len(hit), blocks=_some(hit))
        evicted = np.flatnonzero(idle & (before.content != 0) & (before.content != after.content))
        count = after.stats.counters.blocks_evicted - before.stats.counters.blocks_evicted
        if count > 0:
            self._add("evicted", n=count, blocks=_some(evicted))
        known = {one.seq: one.preemptions for one in before.listed}
        for one in after.listed:
            if one.preemptions > known.get(one.seq, one.preemptions):
                self._add_of(one.seq, "preempted")

    def _add_of(self, seq_id: int, kind: str, **fields: Any) -> None:
        self._add(kind, seq=seq_id, id=self._id_of(seq_id)[:ID_CHARACTERS], **fields)

    def _add(self, kind: str, **fields: Any) -> None:
        self._last += 1
        self._events.append((self._last, {"kind": kind, "t": round(self._clock(), 3), **fields}))


def _forks(plan: StepPlan) -> list[tuple[int, int]]:
    """(the first branch, branches) of each group that this plan forks: its further branches get rows that
    compute nothing yet and sample where the first one does.
    """
    running = set(plan.rows.tolist())
    branches = {setup.row: setup.seq_id for setup in plan.setups if setup.row not in running}
    groups: dict[int, list[int]] = {}
    for position, row in zip(plan.sample_positions.tolist(), plan.sample_rows.tolist(), strict=True):
        if row in branches:
            groups.setdefault(position, []).append(branches[row])
    return [(min(group) - 1, len(group) + 1) for group in groups.values()]


def _some(blocks: Int64Array) -> list[int]:
    """All of them, or NAMED_BLOCKS spread evenly over them."""
    places = np.linspace(0, len(blocks) - 1, min(NAMED_BLOCKS, len(blocks))).astype(np.int64)
    named: list[int] = blocks[places].tolist()
    return named

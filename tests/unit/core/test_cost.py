"""A29 by counting, not by timing: what a step does must not grow with the queue, the pool or the running
rows.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np
import pytest

from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.match import Match
from scheduler_svc.core.plan import (
    Capacity,
    Epoch,
    NewRequest,
    SchedulerConfig,
    SeqId,
    StepId,
    StepPlan,
    StepResult,
)
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.families import families
from scheduler_svc.metrics import ShellMetrics


class Decoding:
    """`running` sequences in steady decode at depth 2, and `waiting` behind them."""

    def __init__(
        self, running: int, waiting: int = 0, num_blocks: int = 4000, rows: int = 0, host_blocks: int = 0
    ) -> None:
        config = SchedulerConfig(max_num_seqs=rows or running, max_num_batched_tokens=4096)
        self.core = Scheduler(config)
        self.core.worker_ready(Capacity(Epoch(1), "model", num_blocks, 16, 4096, 1024, 4096, host_blocks))
        self._next = 0
        for _ in range(running):
            self.add(3000)
        self._sent: list[StepPlan] = []
        for _ in range(6):
            self.step()
        for _ in range(waiting):
            self.add(10)

    def add(self, max_tokens: int) -> None:
        prompt = np.arange(self._next, self._next + 33, dtype=np.int32)
        assert self.core.add(NewRequest(SeqId(self._next), prompt, max_tokens=max_tokens), 0.0) is None
        self._next += 1

    def step(self) -> None:
        while (plan := self.core.schedule(0.0)) is not None:
            self._sent.append(plan)
        sent = self._sent.pop(0)
        self.core.apply(StepResult(sent.step_id, np.full(len(sent.sample_rows), 7, np.int32)), 0.0)
        self.core.take_notices()


@contextmanager
def no_collection() -> Iterator[None]:
    """What earlier tests left behind is neither freed here, nor do callbacks of a collection run here."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def calls_in(action: Callable[[], object]) -> int:
    """Python and C function calls."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    with no_collection():
        sys.setprofile(profile)
        try:
            action()
        finally:
            sys.setprofile(before)
    return count


def calls_of_16_steps(decoding: Decoding) -> int:
    def steps() -> None:
        for _ in range(16):
            decoding.step()

    return calls_in(steps)


def test_a29_a_step_costs_the_same_with_100_and_with_10_000_waiting() -> None:
    assert calls_of_16_steps(Decoding(32, waiting=100)) == calls_of_16_steps(Decoding(32, waiting=10_000))


def test_a29_a_step_costs_the_same_in_a_large_pool() -> None:
    assert calls_of_16_steps(Decoding(32, num_blocks=200)) == calls_of_16_steps(
        Decoding(32, num_blocks=100_000)
    )


def calls_of_a_scrape(decoding: Decoding) -> int:
    def look() -> None:
        list(families(decoding.core.stats(), None, True, ShellMetrics()))

    look()  # what is made once is made
    return calls_in(look)


def test_a_scrape_makes_the_same_calls_in_a_large_pool() -> None:
    """Array operations over the pool are calls too: so many a scrape, and none a step."""
    assert calls_of_a_scrape(Decoding(32, num_blocks=200)) == calls_of_a_scrape(
        Decoding(32, num_blocks=100_000)
    )


def test_a_scrape_makes_no_call_for_a_row_and_one_for_a_waiting_request() -> None:
    assert calls_of_a_scrape(Decoding(16)) == calls_of_a_scrape(Decoding(256))
    waiting = calls_of_a_scrape(Decoding(16, waiting=1000)) - calls_of_a_scrape(Decoding(16))
    assert waiting <= 1000 + 10


def test_a_decode_step_makes_no_call_for_a_row_but_its_blocks_hash() -> None:
    few, many = calls_of_16_steps(Decoding(16)), calls_of_16_steps(Decoding(256))
    hashes = 2 * 240  # one digest and one list entry for each of 240 more blocks
    assert many - few <= hashes + 200


def test_a29_an_abort_from_the_middle_of_the_queue_does_not_grow_with_it() -> None:
    def abort_some(waiting: int) -> int:
        decoding = Decoding(4, waiting=waiting)
        middle = 4 + waiting // 2
        return calls_in(lambda: [decoding.core.abort(SeqId(middle + i), 0.0) for i in range(40)])

    assert abort_some(10_000) <= 1.5 * abort_some(100)


def test_a_head_that_does_not_fit_is_not_matched_again_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = Decoding(4, num_blocks=220, rows=5)
    matched: list[int] = []
    match = BlockManager.match_prefix

    def counting(manager: BlockManager, seq: Sequence, step_id: StepId) -> Match:
        matched.append(seq.seq_id)
        return match(manager, seq, step_id)

    monkeypatch.setattr(BlockManager, "match_prefix", counting)
    decoding.core.add(NewRequest(SeqId(99), np.arange(3400, dtype=np.int32), max_tokens=2), 0.0)
    for _ in range(12):
        decoding.step()
    assert matched == [99]


def _serve(core: Scheduler, first: int, count: int) -> None:
    for seq_id in range(first, first + count, 8):
        for i in range(8):
            prompt = np.arange(seq_id + i, seq_id + i + 20, dtype=np.int32)
            core.add(NewRequest(SeqId(seq_id + i), prompt, max_tokens=3, namespace=str(seq_id)), 0.0)
        core.abort(SeqId(seq_id + 3), 0.0)
        while core.has_work():
            plan = core.schedule(0.0)
            if plan is not None:
                core.apply(StepResult(plan.step_id, np.full(len(plan.sample_rows), 7, np.int32)), 0.0)
        core.take_notices()
    core.stats()  # sorts the ages that have come together


_WARM = 1_000
"""Requests after which the core has all that it keeps once."""


def _kept() -> int:
    """Bytes in use, without those of the interpreter's cache of looked-up names: numpy looks up new strings,
    and the cache keeps each until another takes its place.
    """
    sys._clear_type_cache()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _grown_by(requests: int) -> int:
    """Bytes kept after so many more requests, once warm."""
    tracemalloc.start()  # first, so that what takes the place of older memory does not count
    try:
        core = Scheduler(SchedulerConfig(max_num_seqs=8))
        core.worker_ready(Capacity(Epoch(1), "model", 64, 4, 4096, 8, 4096))
        _serve(core, 0, _WARM)
        before = _kept()
        _serve(core, _WARM, requests)
        return _kept() - before
    finally:
        tracemalloc.stop()


def test_a29_no_residue_of_finished_requests() -> None:
    """A byte a request is less than any object, and than a place in a list."""
    assert _grown_by(2_000) < 2_000


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a29_no_residue_of_200_000_requests() -> None:
    assert _grown_by(200_000) < 100_000

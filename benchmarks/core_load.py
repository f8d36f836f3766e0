"""Loads for the benchmarks of the scheduling core: the real core and the real wire encoding, no worker.

Owns how a steady state is reached and how one step of it is timed; knows nothing of tables or reports.
Invariant: runs of one load do the same work step by step, so that the minimum over runs of each step is a
cost of that step.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler_svc.core.plan import (
    Capacity,
    Epoch,
    NewRequest,
    SamplingParams,
    SchedulerConfig,
    SeqId,
    StepPlan,
    StepResult,
)
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.wire import encode_plan

BLOCK_SIZE = 16
VOCAB = 32_000
PROMPT = 100
MODEL_LEN = 20_000
STOP_IDS = frozenset({1, 2})


@dataclass(frozen=True)
class Load:
    """`rows` sequences in steady decode, `waiting` behind them, on a pool that may be full of findable
    blocks of block_size tokens.
    """

    rows: int
    num_blocks: int = 20_000
    waiting: int = 0
    full: bool = False
    block_size: int = BLOCK_SIZE

    def prompt_len(self, row: int) -> int:
        """Lengths so spread that each step completes rows / block_size blocks, as near as whole ones can."""
        ahead = row * self.block_size // self.rows if self.block_size > self.rows else row % self.block_size
        return PROMPT + ahead


@dataclass(frozen=True)
class Timings:
    """Microseconds, [steps] each. plan: schedule, encode, serialise; apply: take in one answer."""

    schedule: np.ndarray
    encode: np.ndarray
    apply: np.ndarray
    plan_bytes: int


MakeCore = Callable[[SchedulerConfig], Scheduler]


def empty_core(
    num_blocks: int, max_rows: int = 256, make_core: MakeCore = Scheduler, block_size: int = BLOCK_SIZE
) -> Scheduler:
    core = make_core(SchedulerConfig(max_num_seqs=max_rows, max_num_batched_tokens=2 * MODEL_LEN))
    core.worker_ready(Capacity(Epoch(1), "model", num_blocks, block_size, 2 * MODEL_LEN, 4096, MODEL_LEN))
    return core


def fill_pool(core: Scheduler, num_blocks: int, first_id: int = 1 << 40) -> None:
    """Makes every block of an idle core findable: long prompts, one token each."""
    random, left, seq_id = np.random.default_rng(1), num_blocks, first_id
    while left:
        blocks = min(left, 1000)
        prompt = random.integers(0, VOCAB, blocks * BLOCK_SIZE, np.int32)
        core.add(NewRequest(SeqId(seq_id), prompt, max_tokens=1), 0.0)
        drain(core)
        left, seq_id = left - blocks, seq_id + 1


def drain(core: Scheduler) -> None:
    while core.has_work():
        plan = core.schedule(0.0)
        assert plan is not None
        core.apply(StepResult(plan.step_id, np.full(len(plan.sample_rows), 7, np.int32)), 0.0)
    core.take_notices()


class Steady:
    """One run of a load at depth 2."""

    def __init__(self, load: Load, make_core: MakeCore = Scheduler) -> None:
        self._random = np.random.default_rng(0)
        self.core = empty_core(load.num_blocks, load.rows, make_core, load.block_size)
        if load.full:
            fill_pool(self.core, load.num_blocks)
        for i in range(load.rows):
            self._add(i, load.prompt_len(i))
        self._previous: StepPlan | None = None
        self._sent: list[StepPlan] = []
        for _ in range(3 * BLOCK_SIZE):
            self._schedule()
            if len(self._sent) == 2:
                self._apply()
        for i in range(load.waiting):
            self._add(load.rows + i, PROMPT)
        gc.collect()

    def time_steps(self, count: int) -> Timings:
        """[count] steady steps: plan one step with another in flight, then take in the older one."""
        timed = [self._time_step() for _ in range(count)]
        schedule, encode, apply, sizes = zip(*timed, strict=True)
        return Timings(np.array(schedule), np.array(encode), np.array(apply), sizes[-1])

    def _time_step(self) -> tuple[float, float, float, int]:
        while len(self._sent) > 1:
            self._apply()
        answer = self._answer(self._sent[0])
        start = time.perf_counter()
        plan = self.core.schedule(0.0)
        planned = time.perf_counter()
        assert plan is not None
        data = encode_plan(plan, self._previous).SerializeToString()
        encoded = time.perf_counter()
        self.core.apply(answer, 0.0)
        applied = time.perf_counter()
        self._sent = [plan]
        self._previous = plan
        times = (planned - start, encoded - planned, applied - encoded)
        return times[0] * 1e6, times[1] * 1e6, times[2] * 1e6, len(data)

    def _add(self, seq_id: int, length: int) -> None:
        prompt = self._random.integers(0, VOCAB, length, np.int32)
        request = NewRequest(SeqId(seq_id), prompt, 4000, stop_token_ids=STOP_IDS, sampling=SamplingParams())
        assert self.core.add(request, 0.0) is None

    def _schedule(self) -> None:
        plan = self.core.schedule(0.0)
        if plan is not None:
            encode_plan(plan, self._previous)
            self._previous = plan
            self._sent.append(plan)

    def _apply(self) -> None:
        self.core.apply(self._answer(self._sent.pop(0)), 0.0)

    def _answer(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.step_id, self._random.integers(10, VOCAB, len(plan.sample_rows), np.int32))


def best_of_each(loads: Sequence[Load], runs: int, steps: int = 2 * BLOCK_SIZE) -> dict[Load, Timings]:
    """The minimum over runs of each step of each load. Loads take turns, so that all see the same machine.

    Two cycles of blocks: every step of a cycle is in it.
    """
    timed: dict[Load, list[Timings]] = {load: [] for load in loads}
    for _ in range(runs):
        for load, every in timed.items():
            every.append(Steady(load).time_steps(steps))
    return {load: _fastest(every) for load, every in timed.items()}


def _fastest(every: list[Timings]) -> Timings:
    parts = (np.min([getattr(run, name) for run in every], 0) for name in ("schedule", "encode", "apply"))
    return Timings(*parts, every[-1].plan_bytes)

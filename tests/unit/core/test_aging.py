"""Priorities age: who waits long enough stands before whoever arrives later, so nobody starves (A04)."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.plan import Capacity, Epoch, NewRequest, SchedulerConfig, SeqId, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.waiting_queue import rank_of

STEP = 0.5
"""Seconds."""


def steps_to_admission(aging: float, priority: int, limit: int) -> int | None:
    """Steps that a request waits for the one row while a better one arrives in each; None: past the limit."""
    core = Scheduler(SchedulerConfig(max_num_seqs=1, depth=1, priority_aging=aging))
    core.worker_ready(Capacity(Epoch(1), "model", 16, 4, 64, 1, 64))
    ids = itertools.count(1)
    one = np.ones(1, np.int32)
    core.add(NewRequest(SeqId(0), one, max_tokens=1, priority=priority), 0.0)
    for step in range(limit):
        now = step * STEP
        core.add(NewRequest(SeqId(next(ids)), one, max_tokens=1), now)
        plan = core.schedule(now)
        assert plan is not None
        if any(admitted.seq_id == 0 for admitted in core.take_notices().admitted):
            return step
        core.apply(StepResult(plan.step_id, np.array([7], np.int32)), now)
    return None


@pytest.mark.parametrize("priority", [1, 2, 5])
@pytest.mark.parametrize("aging", [1.0, 4.0])
def test_a_worse_priority_waits_no_longer_than_its_aging(priority: int, aging: float) -> None:
    """A request is served in each step, so the bound is the better ones that arrive until it has aged."""
    waited = steps_to_admission(aging, priority, 1000)
    assert waited is not None
    assert waited == math.ceil(priority * aging / STEP)


def test_strict_priorities_let_it_wait_for_ever() -> None:
    assert steps_to_admission(0.0, 1, 1000) is None


@given(
    st.tuples(st.integers(-9, 9), st.floats(0, 1e6)),
    st.tuples(st.integers(-9, 9), st.floats(0, 1e6)),
    st.floats(0.1, 1e4),
)
def test_a_better_priority_wins_until_its_aging_is_over(
    one: tuple[int, float], other: tuple[int, float], aging: float
) -> None:
    (priority, arrived), (others, later) = one, other
    lead = (others - priority) * aging - (arrived - later)
    if abs(lead) > 1e-3:
        assert (rank_of(priority, arrived, aging) < rank_of(others, later, aging)) == (lead > 0)


@pytest.mark.parametrize("aging", [-1.0, math.inf, math.nan])
def test_an_aging_that_is_no_time_is_refused(aging: float) -> None:
    with pytest.raises(ValueError, match="priority_aging"):
        Scheduler(SchedulerConfig(priority_aging=aging))

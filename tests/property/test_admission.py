"""A36: the check at admission and the allocation count alike: what one promises the other gives.

A sliding window is a mask here: blocks are not given back early, so that the counts are those of the context.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from scheduler_svc.core.growth import promised_blocks
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.prefill import PrefillPass
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.session import Session
from tests.fakes.core_driver import CoreDriver
from tests.fakes.random_run import Mix, RandomRun, random_config


@contextmanager
def checked_promises() -> Iterator[list[int]]:
    """After each plan that admitted somebody the pool holds what all contexts under way and the copies after
    forks lack; yields those numbers. Blocks that are copied from are held while a plan is built: not before.
    """
    admit, make_plan, promises = PrefillPass._admit, Scheduler._plan, []
    admitted: list[bool] = []

    def noted(self: PrefillPass, seq: Sequence) -> bool:
        admitted.append(admit(self, seq))
        return admitted[-1]

    def checked(self: Scheduler, session: Session, *rest: Any) -> StepPlan | None:
        admitted.clear()
        plan = make_plan(self, session, *rest)
        if any(admitted):
            rows, manager = session.rows, session.manager
            copies = manager.copies.needed_before(np.flatnonzero(rows.forked))
            promised, available = promised_blocks(session) - rows.num_forked + copies, manager.pool.available
            assert promised <= available, f"{promised} blocks promised, {available} there"
            promises.append(promised)
        return plan

    PrefillPass._admit, Scheduler._plan = noted, checked  # type: ignore[method-assign]
    try:
        yield promises
    finally:
        PrefillPass._admit, Scheduler._plan = admit, make_plan  # type: ignore[method-assign]


@pytest.mark.parametrize("seed", range(10))
def test_a36_what_an_admission_promises_is_there(seed: int) -> None:
    """Nearly full pools, hits on idle and on held blocks, copies, forks and preemptions."""
    chance = random.Random(seed)
    config = random_config(chance, max_num_seqs=8, max_num_batched_tokens=16, max_prefill_chunk=5)
    driver = CoreDriver(chance.choice([6, 12, 20]), 4, config, max_model_len=60, vocab_size=40)
    run = RandomRun(driver, chance, Mix(lengths=(0, 3, 7, 12, 20), max_tokens=(17, 5, 2)))
    with checked_promises() as promises:
        run.operate(200)
        run.finish()
    assert any(promises), "some contexts were admitted before all of their blocks were taken"

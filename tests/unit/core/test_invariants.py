"""The audit itself: each thing it is to find is broken by hand and found."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from scheduler_svc.core.checks import changed_by_failure
from scheduler_svc.core.plan import SchedulerConfig, StepPlan
from scheduler_svc.core.prefill import PrefillPass
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.session import Session
from tests.fakes.core_driver import CoreDriver
from tests.fakes.failed_allocations import watched_admissions
from tests.fakes.random_run import RandomRun, random_config


def running() -> tuple[CoreDriver, Session]:
    """Two sequences that share two blocks, and an evictable chain."""
    core = CoreDriver(16, 4)
    core.add([900, *range(20)], 1)
    core.run()
    core.add([*range(8), 100], 9)
    core.add([*range(8), 101], 9)
    core.fill()
    session = core.core._lifecycle.session
    assert session is not None
    assert core.core.audit().violations == ()
    return core, session


def break_ref_count(session: Session) -> None:
    session.manager.pool.ref_count[int(session.rows.table[0, 0])] += 1


def free_an_active_block(session: Session) -> None:
    pool = session.manager.pool
    pool.free_blocks()[-1] = session.rows.table[0, 0]


def lose_a_free_block(session: Session) -> None:
    session.manager.pool.num_free -= 1


def forget_a_flag(session: Session) -> None:
    session.manager.pool.cached[session.manager.pool.lru.oldest(1)] = False


def orphan_a_child(session: Session) -> None:
    manager = session.manager
    newest = manager.pool.lru.oldest(manager.pool.lru.count)[-1:]
    manager.index.remove(newest)
    manager.pool.forget(newest)


def change_a_key(session: Session) -> None:
    index = session.manager.index
    index.key_low[int(session.rows.table[0, 0])] ^= np.uint64(1)


def change_tokens(session: Session) -> None:
    index, block = session.manager.index, int(session.rows.table[0, 1])
    other = int(session.manager.pool.lru.oldest(1)[0])
    index.tokens[other], index.parents[other] = index.tokens[block], index.parents[block]


def shorten_a_table(session: Session) -> None:
    session.rows.num_blocks[0] -= 1


def lose_a_sequence(session: Session) -> None:
    session.rows.sequence[0] = None


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (break_ref_count, "I2"),
        (free_an_active_block, "I1"),
        (lose_a_free_block, "I1"),
        (forget_a_flag, "I1"),
        (orphan_a_child, "I3"),
        (change_a_key, "I3"),
        (change_tokens, "I3"),
        (shorten_a_table, "I5"),
        (lose_a_sequence, "live"),
    ],
)
def test_the_audit_names_what_is_broken(damage: Callable[[Session], None], named: str) -> None:
    core, session = running()
    damage(session)
    assert any(named in violation for violation in core.core.audit().violations)


def test_a_leaked_block_is_counted() -> None:
    core, session = running()
    lose_a_free_block(session)
    assert core.core.audit().leaked == 1


def test_i4_and_i7_are_checked_on_a_plan() -> None:
    core, session = running()
    plan = core.plans[-1]
    shared, size = int(session.rows.table[0, 0]), session.capacity.block_size

    def writing(*slots: int) -> StepPlan:
        changed = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
        return StepPlan(**{**changed, "slot_mapping": np.array(slots, np.int32)})

    assert core.core.check_plan(plan) == []
    assert any("I7" in found for found in core.core.check_plan(writing(9, 9)))
    assert any("I4" in found for found in core.core.check_plan(writing(shared * size)))


def test_i6_a_table_whose_past_changes_is_named() -> None:
    core, session = running()
    core.core.audit()
    table = session.rows.table
    table[0, [0, 1]] = table[0, [1, 0]]
    assert any("I6: entry 0 of row 0" in found for found in core.core.audit().violations)


def test_i6_a_last_block_replaced_without_a_copy_is_named_and_with_one_it_is_not() -> None:
    core, session = running()
    core.core.audit()
    last = int(session.rows.num_blocks[0]) - 1
    old, free = int(session.rows.table[0, last]), int(session.manager.pool.free_blocks()[-1])

    def replaced_by(*pairs: tuple[int, int]) -> bool:
        core.core.audit()
        session.rows.table[0, last] = free
        copied = replace(core.plans[-1], copy_pairs=np.array(pairs, np.int32).reshape(-1, 2))
        core.core.check_plan(copied)
        found = core.core.audit().violations
        session.rows.table[0, last] = old
        core.core.check_plan(replace(copied, copy_pairs=np.array([(free, old)], np.int32)))
        core.core.audit()
        return any("I6" in violation for violation in found)

    assert replaced_by()
    assert replaced_by((old, free + 1))
    assert not replaced_by((old, free))


def test_i6_a_table_that_lost_a_block_is_named() -> None:
    core, session = running()
    core.core.audit()
    session.rows.num_blocks[0] -= 1
    assert any("I6: the table of row 0 lost 1" in found for found in core.core.audit().violations)


def test_i6_a_row_that_begins_anew_may_have_any_table() -> None:
    core, _ = running()
    core.core.audit()
    core.run()
    core.add([*range(8), 100], 3)
    core.run()
    assert core.core.audit().violations == ()


def full_pool() -> CoreDriver:
    """A sequence runs, and one waits whose beginning is cached and that does not fit."""
    core = CoreDriver(8, 4, SchedulerConfig(watermark_blocks=0))
    core.add([*range(8), 900], 1)
    core.run()
    core.add([500 + i for i in range(16)], 12)
    core.step()
    core.add([*range(8), *range(700, 712)], 3)
    return core


def share_too_early(self: PrefillPass, seq: Sequence) -> bool:
    """An admission that takes its hits before it knows whether it fits."""
    admitted = _ADMIT(self, seq)
    if not admitted:
        hits = self.session.manager.pool.lru.oldest(1)
        self.session.manager.pool.share(hits)
        self.session.manager.pool.release(hits)  # given back, but at the young end of the queue
    return admitted


def count_too_early(self: PrefillPass, seq: Sequence) -> bool:
    admitted = _ADMIT(self, seq)
    self.counters.blocks_allocated += not admitted
    return admitted


_ADMIT = PrefillPass._admit


@pytest.mark.parametrize(
    ("broken", "named"), [(share_too_early, "lru_order"), (count_too_early, "statistics")]
)
def test_i8_an_admission_that_fails_and_leaves_a_trace_is_named(
    broken: Callable[[PrefillPass, Sequence], bool], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched_admissions() as outcomes:
        full_pool().fill()
    assert outcomes[-1] is False, "the admission fails, and changes nothing"
    monkeypatch.setattr(PrefillPass, "_admit", broken)
    with (
        watched_admissions(),
        pytest.raises(AssertionError, match=f"I8: a failed allocation changed {named}"),
    ):
        full_pool().fill()


def test_i8_a_step_that_cannot_be_built_and_leaves_a_trace_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    core = CoreDriver(4, 2, SchedulerConfig(watermark_blocks=0))
    core.add([1, 2, 3], 6)
    core.add([4, 5, 6], 6)
    while core.schedule() is not None:
        pass
    before = core.core.ledger()
    assert core.core.schedule(0.0) is None
    assert changed_by_failure(before, core.core.ledger()) == []
    session = core.core._lifecycle.session
    assert session is not None
    session.manager.pool.ref_count[int(session.rows.table[0, 0])] += 1
    assert changed_by_failure(before, core.core.ledger()) == ["I8: a failed allocation changed references"]


def test_i8_what_ended_or_was_preempted_meanwhile_is_no_failed_allocation() -> None:
    core = CoreDriver(16, 2)
    seq_id = core.add([1, 2, 3], 6)
    core.step()
    before = core.core.ledger()
    core.abort(seq_id)
    assert changed_by_failure(before, core.core.ledger()) == []


@pytest.mark.parametrize("seed", range(8))
def test_i8_no_admission_of_a_random_run_that_fails_changes_anything(seed: int) -> None:
    chance = random.Random(seed)
    config = random_config(chance, max_num_seqs=8, max_num_batched_tokens=32)
    driver = CoreDriver(chance.choice([3, 6, 12]), 4, config, max_model_len=40, vocab_size=40)
    run = RandomRun(driver, chance)
    with watched_admissions() as outcomes:
        run.operate(200)
        run.finish()
    assert len(set(outcomes)) == 2, "some fitted, some did not"

"""The audit itself: each thing it is to find is broken by hand and found."""

from collections.abc import Callable

import numpy as np
import pytest

from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.session import Session
from tests.fakes.core_driver import CoreDriver


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

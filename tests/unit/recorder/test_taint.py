"""What a differing token spoils on a worker, and what it does not."""

from collections.abc import Sequence

import numpy as np

from scheduler_svc.core.plan import RowSetup, SamplingParams, SeqId, StepId, StepPlan, no_ids
from scheduler_svc.recorder.taint import Taint

SIZE = 2


def plan(
    rows: dict[int, list[int]],
    *,
    tables: Sequence[tuple[int, int, int]] = (),
    setups: Sequence[int] = (),
    copies: Sequence[tuple[int, int]] = (),
) -> StepPlan:
    """rows: the slots that each row writes; tables: (row, offset, block)."""
    table = np.array(tables, np.int32).reshape(-1, 3)
    counts = np.array([len(slots) for slots in rows.values()], np.int32)
    flat = np.array([slot for slots in rows.values() for slot in slots], np.int32)
    return StepPlan(
        StepId(1), no_ids(), tuple(RowSetup(row, SeqId(row), 1, SamplingParams()) for row in setups),
        table[:, 0], table[:, 1], table[:, 2], no_ids(), np.array(copies, np.int32).reshape(-1, 2),
        np.array(list(rows), np.int32), counts, counts, flat, flat, flat, no_ids(), no_ids(),
    )  # fmt: skip


def begun() -> Taint:
    """Row 0 holds blocks 5 and 6, row 1 block 7; both have written their first tokens."""
    taint = Taint(SIZE)
    taint.follow(plan({0: [10, 11], 1: [14]}, tables=[(0, 0, 5), (1, 0, 7)], setups=[0, 1]))
    return taint


def test_a_row_that_differs_is_unsound_until_it_is_set_up_again() -> None:
    taint = begun()
    taint.differs(0, [])
    assert not taint.sound(0)
    assert taint.sound(1)
    taint.follow(plan({0: [16]}, tables=[(0, 0, 8)], setups=[0]))
    assert taint.sound(0)


def test_who_hits_a_block_written_after_the_difference_is_unsound_too() -> None:
    taint = begun()
    later = plan({0: [12]}, tables=[(0, 1, 6)])
    taint.follow(later)
    taint.differs(0, [later])
    taint.follow(plan({0: [13]}))
    taint.follow(plan({2: [16]}, tables=[(2, 0, 5), (2, 1, 6), (2, 2, 8)], setups=[2]))
    taint.follow(plan({3: [18]}, tables=[(3, 0, 5), (3, 1, 9)], setups=[3]))
    assert not taint.sound(2)
    assert taint.sound(3), "block 5 was written before the difference"


def test_a_copy_of_a_spoilt_block_is_spoilt_and_a_block_begun_anew_is_not() -> None:
    taint = begun()
    later = plan({0: [12]}, tables=[(0, 1, 6)])
    taint.follow(later)
    taint.differs(0, [later])
    taint.follow(plan({2: [19]}, tables=[(2, 0, 9)], setups=[2], copies=[(6, 9)]))
    assert not taint.sound(2)
    taint.follow(plan({3: [12, 13]}, tables=[(3, 0, 6)], setups=[3]))
    assert taint.sound(3)

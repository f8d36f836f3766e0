"""The invariants that are about two moments: what a table was before, and what a failed allocation left.

Owns the memory of the last audit; changes no decision. Invariant: it remembers copies, so that nothing that
goes wrong in the live state can hide in what it is compared with.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from scheduler_svc.core.invariants import Audit, audit, check_plan
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.plan import Int32Array, StepPlan
from scheduler_svc.core.rows import Rows
from scheduler_svc.core.session import Session
from scheduler_svc.core.stats import Counters


@dataclass(frozen=True, slots=True)
class Ledger:
    """What an allocation may change, as bytes. progress: what must be equal for two ledgers to be comparable:
    who lives, waits and was put back.
    """

    progress: tuple[int, ...]
    references: bytes
    findable: bytes
    free_blocks: bytes
    lru_order: bytes
    index: bytes
    tables: bytes
    statistics: tuple[int, ...]


class Checks:
    """settle: brings the index up to date; called before each look."""

    def __init__(self, lifecycle: Lifecycle, counters: Counters, settle: Callable[[], None]) -> None:
        self._lifecycle = lifecycle
        self._counters = counters
        self._settle = settle
        self._tables: dict[tuple[int, int], Int32Array] = {}  # by stay, at the last audit
        self._copied: set[tuple[int, int]] = set()
        self._checked_steps = 0
        self._session: Session | None = None

    def audit(self, last_step: int) -> Audit:
        """All that `invariants.audit` checks, and I6 since the last audit. last_step: the newest plan's."""
        self._settle()
        found = audit(self._lifecycle)
        session = self._lifecycle.session
        if session is not self._session:
            self._session, self._tables = session, {}
        if session is None:
            return found
        replaced = None if self._checked_steps < last_step else self._copied
        changed = _changed_tables(session.rows, self._tables, replaced)
        self._tables = _tables_of(session.rows)
        self._copied, self._checked_steps = set(), last_step
        return replace(found, violations=(*found.violations, *changed))

    def check_plan(self, plan: StepPlan) -> list[str]:
        """What is wrong with a plan just made (I4, I7)."""
        if self._lifecycle.session is not None:
            self._lifecycle.session.manager.index_scheduled()
        if plan.step_id == self._checked_steps + 1:
            self._checked_steps = plan.step_id
        self._copied.update((source, target) for source, target in plan.copy_pairs.reshape(-1, 2).tolist())
        return check_plan(self._lifecycle, plan)

    def ledger(self) -> Ledger | None:
        """What an allocation may change, now; None without a worker."""
        self._settle()
        session = self._lifecycle.session
        if session is None:
            return None
        live, waiting = len(self._lifecycle.live), len(self._lifecycle.waiting)
        done = (live, waiting, self._counters.preemptions, session.rows.num_releases)
        return ledger_of(session, self._counters, done)


def ledger_of(session: Session, counters: Counters, progress: tuple[int, ...] = ()) -> Ledger:
    """The ledger of a settled session."""
    pool, rows = session.manager.pool, session.rows
    tables = [rows.blocks_of(seq.row) for seq in rows.running()]
    return Ledger(
        progress=progress,
        references=pool.ref_count.tobytes(),
        findable=pool.cached.tobytes(),
        free_blocks=pool.free_blocks().tobytes(),
        lru_order=pool.lru.oldest(pool.lru.count).tobytes(),
        index=session.manager.index.uids.tobytes(),
        tables=b"".join(table.tobytes() for table in tables),
        statistics=(counters.blocks_allocated, counters.blocks_freed, counters.blocks_evicted),
    )


def changed_by_failure(before: Ledger | None, after: Ledger | None) -> list[str]:
    """I8: what an allocation that failed between the two has changed; empty when more happened."""
    if before is None or after is None or before.progress != after.progress:
        return []
    names = [field.name for field in fields(Ledger)]
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    return [f"I8: a failed allocation changed {name}" for name in changed]


def _tables_of(rows: Rows) -> dict[tuple[int, int], Int32Array]:
    return {(seq.row, int(rows.tenure[seq.row])): rows.blocks_of(seq.row).copy() for seq in rows.running()}


def _changed_tables(
    rows: Rows, before: dict[tuple[int, int], Int32Array], copied: set[tuple[int, int]] | None
) -> list[str]:
    """I6. copied: (from, to) of the plans since then; None when they are not known."""
    found = []
    for stay, table in _tables_of(rows).items():
        old = before.get(stay)
        if old is None or not len(old):
            continue
        row, kept = stay[0], len(old)
        if len(table) < kept:
            found.append(f"I6: the table of row {row} lost {kept - len(table)} of {kept} blocks")
            continue
        unlike = np.flatnonzero(table[:kept] != old).tolist()
        if not unlike:
            continue
        pair = (int(old[-1]), int(table[kept - 1]))
        if unlike != [kept - 1] or (copied is not None and pair not in copied):
            at = unlike[0]
            found.append(f"I6: entry {at} of row {row} was block {old[at]}, is {table[at]}")
    return found

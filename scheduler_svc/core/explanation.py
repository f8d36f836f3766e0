"""Why a sequence waits, what it was served, and what would give way next, in the scheduler's own terms.

Owns nothing; asks the same questions as an admission and changes nothing. Invariant: what it says a waiting
sequence needs is what the next admission will compare with the pool, unless something changes before.
"""

from dataclasses import dataclass
from enum import Enum

from scheduler_svc.core.block_manager import ANY_STEP
from scheduler_svc.core.growth import promised_blocks
from scheduler_svc.core.inspection import view_of
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.plan import Int32Array, SchedulerConfig, SeqId, no_ids
from scheduler_svc.core.preemption import choose_victim
from scheduler_svc.core.prefill import Need, admission_of
from scheduler_svc.core.sequence import Sequence, SequenceView
from scheduler_svc.core.session import Session
from scheduler_svc.core.stats import Counters

NAMED = 8
"""Sequences ahead and blocks next to be evicted that are named; the rest is counted."""


class WaitReason(Enum):
    """Why a sequence has no row, the most basic first; several may hold. TRANSFER: the end of its own
    transfer to host memory is missing, or of one that fences the blocks it lacks; it holds of rows too.
    """

    NO_WORKER = "no_worker"
    NO_ROW = "no_row"
    BEHIND_OTHERS = "behind_others"
    NO_BLOCKS = "no_blocks"
    TRANSFER = "transfer"
    NEXT_STEP = "next_step"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One sequence at one moment.

    reasons: why it waits, none when it runs and nothing holds its row up. ahead: sequences that the queue
    serves first; first_ahead: the first of them. need: what its admission asks of the pool, None when it runs
    or there is no worker. promised: blocks that prefills under way still lack. preempted_for: seconds since
    it lost its row, None when it has one or never had. next_evicted: [<= NAMED] evictable blocks, the first
    to go first; free ones go before all of them. next_victim: who loses its blocks next for lack of others,
    None when at most one runs.
    """

    view: SequenceView
    reasons: tuple[WaitReason, ...]
    ahead: int
    first_ahead: tuple[SeqId, ...]
    need: Need | None
    promised: int
    free_blocks: int
    evictable_blocks: int
    fenced_blocks: int
    free_rows: int
    admissions: int
    preempted_for: float | None
    next_evicted: Int32Array
    next_victim: SeqId | None

    @property
    def spare_blocks(self) -> int:
        """Blocks that an admission could take now."""
        return self.free_blocks + self.evictable_blocks - self.promised


def explain(
    lifecycle: Lifecycle, config: SchedulerConfig, counters: Counters, seq: Sequence, now: float
) -> Explanation:
    """Costs a walk over the queue, and a look-up in the prefix index for a sequence that waits."""
    subject = seq.leader or seq  # a branch waits until the one that leads it is computed
    session, waits = lifecycle.session, subject.row < 0
    waiting = lifecycle.waiting.sequences() if waits else []
    before = sorted(
        (other for other in waiting if other.order < subject.order), key=lambda other: other.order
    )
    need = _need(session, config, counters, subject) if waits and session is not None else None
    promised = promised_blocks(session) if session is not None else 0
    pool = session.manager.pool if session is not None else None
    running = session.rows.running() if session is not None else []
    lost_at = seq.preempted_at if waits else None
    return Explanation(
        view=view_of(lifecycle, seq),
        reasons=_reasons(session, subject, need, promised, len(before))
        if waits
        else _held_up(session, subject),
        ahead=len(before),
        first_ahead=tuple(other.seq_id for other in before[:NAMED]),
        need=need,
        promised=promised,
        free_blocks=pool.num_free if pool is not None else 0,
        evictable_blocks=pool.lru.count if pool is not None else 0,
        fenced_blocks=pool.num_fenced if pool is not None else 0,
        free_rows=session.rows.num_free if session is not None else 0,
        admissions=seq.admissions,
        preempted_for=max(0.0, now - lost_at) if lost_at is not None else None,
        next_evicted=pool.lru.oldest(min(NAMED, pool.lru.count)) if pool is not None else no_ids(),
        next_victim=choose_victim(running).seq_id if len(running) > 1 else None,
    )


def _need(session: Session, config: SchedulerConfig, counters: Counters, seq: Sequence) -> Need:
    collisions = counters.prefix_collisions
    _, need = admission_of(session, config, seq, ANY_STEP)
    counters.prefix_collisions = collisions  # a look is no look-up of a request
    return need


def _reasons(
    session: Session | None, seq: Sequence, need: Need | None, promised: int, ahead: int
) -> tuple[WaitReason, ...]:
    if session is None or need is None:
        return (WaitReason.NO_WORKER,)
    pool, copy = session.manager.pool, session.copy_of(seq)
    lacking = need.total - (pool.available - promised)
    holds = {
        WaitReason.NO_ROW: session.rows.num_free <= len(seq.followers),
        WaitReason.BEHIND_OTHERS: ahead > 0,
        WaitReason.NO_BLOCKS: lacking > 0,
        WaitReason.TRANSFER: (copy is not None and not copy.done) or 0 < lacking <= pool.num_fenced,
    }
    return tuple(reason for reason, true in holds.items() if true) or (WaitReason.NEXT_STEP,)


def _held_up(session: Session | None, seq: Sequence) -> tuple[WaitReason, ...]:
    """Whether the next step, and with it a row that decodes, has to wait for fenced blocks."""
    if session is None or seq.row in session.rows.prefilling or not session.rows.left[seq.row]:
        return ()
    rows, manager = session.rows, session.manager
    decodes = rows.decodes()
    needed = len(rows.without_room(decodes)) + manager.copies.needed_before(decodes)
    waits = manager.pool.num_fenced > 0 and needed > manager.pool.available
    return (WaitReason.TRANSFER,) if waits else ()

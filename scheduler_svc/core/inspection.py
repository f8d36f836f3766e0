"""The live state as plain values, for operators: gauges, the pool map, tables, sequences.

Owns nothing; reads everything and changes nothing. Invariant: what it returns shares no memory with the live
state, and the block states add up to the pool.
"""

import numpy as np

from scheduler_svc.core.ages import Ages
from scheduler_svc.core.decisions import PreemptionRecord
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.sequence import SeqState, Sequence, SequenceView
from scheduler_svc.core.session import Session
from scheduler_svc.core.stats import BlockState, Counters, PoolMap, PoolStats

HASH_PREFIX_BYTES = 4


def stats_of(lifecycle: Lifecycle, counters: Counters, ages: Ages, record: PreemptionRecord) -> PoolStats:
    """Gauges now; all zero but the waiting ones while there is no worker."""
    waiting = lifecycle.waiting.sequences()
    preempted = sum(seq.state is SeqState.PREEMPTED for seq in waiting)
    session = lifecycle.session
    if session is None:
        return PoolStats(
            counters.copy(),
            waiting=len(waiting),
            preempted=preempted,
            ages=ages.copy(),
            preemption=record.copy(),
        )
    pool, rows = session.manager.pool, session.rows
    allocated = pool.num_active * session.capacity.block_size
    return PoolStats(
        counters.copy(),
        num_blocks=pool.num_blocks,
        block_size=session.capacity.block_size,
        blocks_free=pool.num_free,
        blocks_evictable=pool.lru.count,
        blocks_active=pool.num_active,
        blocks_fenced=pool.num_fenced,
        blocks_shared=int(np.count_nonzero(pool.ref_count >= 2)),
        block_refs=int(pool.ref_count.sum()),
        slots_allocated=allocated,
        slots_filled=allocated - _unfilled(session),
        prefix_entries=session.manager.index.num_entries,
        running=rows.count,
        waiting=len(waiting),
        preempted=preempted,
        in_flight=len(session.in_flight),
        max_rows=rows.max_rows,
        ages=ages.copy(),
        preemption=record.copy(),
        host_blocks=0 if session.host is None else session.host.num_blocks,
        host_blocks_free=0 if session.host is None else session.host.num_free,
        swapped=0 if session.host is None else len(session.host.copies),
    )


def pool_map_of(session: Session | None) -> PoolMap:
    """Arrays [num_blocks], [0] while there is no worker."""
    if session is None:
        nothing = np.empty(0, np.uint8)
        return PoolMap(nothing, np.empty(0, np.int32), np.empty(0, np.int32), nothing)
    pool, rows, size = session.manager.pool, session.rows, session.capacity.block_size
    state = np.where(pool.ref_count > 0, BlockState.ACTIVE, BlockState.FREE).astype(np.uint8)
    state[(pool.ref_count == 0) & pool.cached] = BlockState.EVICTABLE
    state[(pool.ref_count == 0) & (pool.pins > 0)] = BlockState.FENCED
    fill = np.where(pool.cached, session.manager.index.fill, 0).astype(np.int32)
    for seq in rows.running():
        table = rows.blocks_of(seq.row)
        full, rest = divmod(int(rows.scheduled[seq.row]), size)
        fill[table[:full]] = size
        if rest:
            fill[table[full]] = max(rest, fill[table[full]])
    return PoolMap(state, pool.ref_count.copy(), fill, pool.cached.astype(np.uint8))


def blocks_of(session: Session, seq: Sequence) -> list[tuple[int, int, int, str]]:
    """(block, ref_count, fill, first bytes of its key in hex or '') of each entry of the sequence's table."""
    pool, index, size = session.manager.pool, session.manager.index, session.capacity.block_size
    scheduled = int(session.rows.scheduled[seq.row])
    described = []
    for offset, block in enumerate(session.rows.blocks_of(seq.row).tolist()):
        key = index.key_of(block)[:HASH_PREFIX_BYTES].hex() if pool.cached[block] else ""
        described.append(
            (block, int(pool.ref_count[block]), max(0, min(size, scheduled - offset * size)), key)
        )
    return described


def view_of(lifecycle: Lifecycle, seq: Sequence) -> SequenceView:
    session = lifecycle.session
    computed = num_blocks = host_blocks = 0
    if session is not None and seq.row >= 0:
        computed, num_blocks = int(session.rows.scheduled[seq.row]), int(session.rows.num_blocks[seq.row])
    if session is not None and (copy := session.copy_of(seq)) is not None:
        host_blocks = len(copy.blocks)
    return SequenceView(
        seq.seq_id, seq.state, seq.prompt_len, seq.cached_prompt_tokens, computed, lifecycle.output_len(seq),
        num_blocks, seq.preemptions, seq.request.priority, seq.arrived_at, host_blocks,
    )  # fmt: skip


def _unfilled(session: Session) -> int:
    """Slots of active blocks that hold no token: only the last blocks of rows have any, those that branches
    share right after a fork counted once.
    """
    rows = session.rows
    used = rows.in_use()
    unfilled = rows.num_blocks[used].astype(np.int64) * rows.block_size - rows.scheduled[used]
    forked = rows.forked[used]
    last = [int(rows.blocks_of(row)[-1]) for row in used[forked].tolist()]
    shared: dict[int, int] = dict(zip(last, unfilled[forked].tolist(), strict=True))
    return int(unfilled[~forked].sum()) + sum(shared.values())

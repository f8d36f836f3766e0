"""The invariants of kv-cache.md, checked against the whole live state.

Owns the checks; changes nothing and is never needed for a decision. Invariant: it trusts no counter: states,
references and index are worked out anew from the tables and the lists and compared with what the core keeps.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.plan import Int32Array, Int64Array, StepPlan, no_ids
from scheduler_svc.core.sequence import SeqState
from scheduler_svc.core.session import Session


@dataclass(frozen=True, slots=True)
class Audit:
    """violations: one sentence each, empty when all holds. leaked: blocks in no table and in no list."""

    violations: tuple[str, ...]
    leaked: int


def audit(lifecycle: Lifecycle) -> Audit:
    """Checks I1-I3, I5 and the sequences' whereabouts of a settled index. Costs a walk over all blocks."""
    found = list(_sequences(lifecycle))
    session = lifecycle.session
    leaked = 0
    if session is not None:
        for check in _CHECKS:
            found += check(session)
        leaked = _leaked(session)
    return Audit(tuple(found), leaked)


def check_plan(lifecycle: Lifecycle, plan: StepPlan) -> list[str]:
    """Checks I4 and I7 of a plan that was just made: who writes where."""
    session = lifecycle.session
    assert session is not None
    found, size = [], session.capacity.block_size
    slots = plan.slot_mapping
    if len(np.unique(slots)) != len(slots):
        found.append("I7: two tokens of one step share a slot")
    written = np.unique(np.concatenate((slots // size, plan.copy_pairs[:, 1])))
    pool, index = session.manager.pool, session.manager.index
    branches = plan.sample_rows[~np.isin(plan.sample_rows, plan.rows)]
    forked = plan.table_blocks[np.isin(plan.table_rows, branches)]  # they join when it is written
    for block in written.tolist():
        published = bool(pool.cached[block])
        if published and index.published_in[block] != plan.step_id:
            found.append(f"I4: block {block} is written although it was findable before")
        holders = int(pool.ref_count[block] - np.count_nonzero(forked == block))
        if not published and holders != 1:
            found.append(f"I4: block {block} is written by one of its {holders} holders")
    fresh = set(plan.table_blocks.tolist())
    for block in plan.zero_blocks.tolist():
        in_use = pool.ref_count[block] > 0 and block not in fresh
        if in_use or (pool.cached[block] and index.published_in[block] != plan.step_id):
            found.append(f"block {block} is zeroed although it holds content")
    return found


def _sequences(lifecycle: Lifecycle) -> Iterator[str]:
    """Each live sequence is in the queue or in one row, and only those in the queue have a copy."""
    queue = lifecycle.waiting.sequences()
    rows = lifecycle.session.rows.running() if lifecycle.session else []
    places = [seq.seq_id for seq in (*queue, *rows)]
    places += [follower.seq_id for leader in (*queue, *rows) for follower in leader.followers]
    running = {seq.seq_id for seq in rows}
    if sorted(places) != sorted(lifecycle.live):
        yield f"live {sorted(lifecycle.live)}, but waiting, running or led {sorted(places)}"
    copies = lifecycle.session.host.copies if lifecycle.session and lifecycle.session.host else {}
    if not copies.keys() <= {seq.seq_id for seq in queue}:
        yield f"copies of {sorted(copies)}, of which some do not wait"
    for seq in lifecycle.live.values():
        if (seq.state is SeqState.RUNNING) != (seq.row >= 0) or (seq.row >= 0) != (seq.seq_id in running):
            yield f"sequence {seq.seq_id} is {seq.state.value} in row {seq.row}"


def _states(session: Session) -> Iterator[str]:
    """I1: every block is in exactly one state, and no pinned one is in a list."""
    pool = session.manager.pool
    free, evictable = pool.free_blocks(), pool.lru.oldest(pool.lru.count)
    places = _count(free, pool) + _count(evictable, pool)
    fenced = (pool.ref_count == 0) & (pool.pins > 0)
    for block in np.flatnonzero(places != ((pool.ref_count == 0) & ~fenced)).tolist():
        yield (
            f"I1: block {block} with {pool.ref_count[block]} references and {pool.pins[block]} pins "
            f"is in {places[block]} lists"
        )
    if pool.num_fenced != np.count_nonzero(fenced):
        yield f"I1: {np.count_nonzero(fenced)} blocks are fenced, {pool.num_fenced} counted"
    for block in free[pool.cached[free]].tolist():
        yield f"I1: free block {block} is findable"
    for block in evictable[~pool.cached[evictable]].tolist():
        yield f"I1: evictable block {block} is not findable"


def _references(session: Session) -> Iterator[str]:
    """I2: ref_count is the number of table entries."""
    entries, counted = _table_entries(session), session.manager.pool.ref_count
    for block in np.flatnonzero(entries != counted).tolist():
        yield f"I2: block {block}: {entries[block]} entries, {counted[block]} counted"


def _transfers(session: Session) -> Iterator[str]:
    """I2: pins are the transfers under way; each host block is free or has one holder."""
    pool, host = session.manager.pool, session.host
    pins = _count(np.concatenate([no_ids(), *(host.pinned() if host is not None else [])]), pool)
    for block in np.flatnonzero(pins != pool.pins).tolist():
        yield f"I2: block {block}: {pins[block]} transfers, {pool.pins[block]} pins"
    if host is not None:
        places = np.bincount(np.concatenate([host.free_blocks(), *host.held()]), minlength=host.num_blocks)
        for block in np.flatnonzero(places != 1).tolist():
            yield f"host block {block} is in {places[block]} places"


def _index(session: Session) -> Iterator[str]:
    """I3: the index holds exactly the cached blocks, under their keys, a full block's content with one uid.

    A part-filled block has no child, and is published again when its equal stands behind too many siblings.
    """
    index, pool = session.manager.index, session.manager.pool
    cached = np.flatnonzero(pool.cached).tolist()
    if index.num_entries != len(cached):
        yield f"I3: {index.num_entries} entries for {len(cached)} findable blocks"
    uid_of: dict[tuple[int, bytes, int], int] = {}
    alive = set(index.uids[cached].tolist())
    for block in cached:
        uid, parent = int(index.uids[block]), int(index.parents[block])
        fill = int(index.fill[block])
        content = (parent, index.tokens[block, :fill].tobytes(), -1 if fill == index.block_size else block)
        if uid <= 0 or uid_of.setdefault(content, uid) != uid:
            yield f"I3: block {block} has uid {uid}, its content {uid_of[content]}"
        if parent >= 0 and parent not in alive:
            yield f"I3: the parent of block {block} is not findable"
        if not index.holds(block):
            yield f"I3: block {block} is in the wrong bucket or in none"
    if len(set(uid_of.values())) != len(uid_of):
        yield "I3: two contents have one uid"


def _tables(session: Session) -> Iterator[str]:
    """I5: a table covers what is scheduled and no more."""
    rows, size = session.rows, session.capacity.block_size
    for seq in rows.running():
        row = seq.row
        scheduled, held = int(rows.scheduled[row]), int(rows.num_blocks[row])
        if held != -(-scheduled // size):
            yield f"I5: sequence {seq.seq_id} holds {held} blocks for {scheduled} tokens"
        if rows.room[row] != held * size - scheduled:
            yield f"I5: row {row} counts {rows.room[row]} free slots"
        shared = bool(rows.room[row]) and session.manager.pool.ref_count[rows.blocks_of(row)[-1]] > 1
        if shared and not rows.forked[row]:
            yield f"I4: row {row} is to write its last block, which others hold"
        if len(np.unique(rows.blocks_of(row))) != held:
            yield f"I5: sequence {seq.seq_id} holds a block twice"
        computed_from = 0 if row in rows.prefilling else int(rows.known[row]) - 1
        if not computed_from <= scheduled <= rows.last[row]:
            yield f"sequence {seq.seq_id}: {scheduled} tokens scheduled, {rows.known[row]} known"


_CHECKS: tuple[Callable[[Session], Iterator[str]], ...] = (
    _states,
    _references,
    _transfers,
    _index,
    _tables,
)


def _leaked(session: Session) -> int:
    pool = session.manager.pool
    known = _table_entries(session) + _count(pool.free_blocks(), pool) + pool.pins
    return int(np.count_nonzero(known + _count(pool.lru.oldest(pool.lru.count), pool) == 0))


def _table_entries(session: Session) -> Int64Array:
    """[num_blocks] table entries that name each block."""
    rows = session.rows
    tables = [rows.blocks_of(seq.row) for seq in rows.running()]
    return _count(np.concatenate([no_ids(), *tables]), session.manager.pool)


def _count(blocks: Int32Array, pool: BlockPool) -> Int64Array:
    """[num_blocks] how often each block is among these."""
    return np.bincount(blocks, minlength=pool.num_blocks)

"""Who holds which block, and what a block is: the pool as an inspector draws it.

Owns nothing; reads everything and changes nothing. Invariant: what it returns shares no memory with the live
state.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from scheduler_svc.core.inspection import pool_map_of, view_of
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.plan import BlockId, Int32Array, Int64Array, SeqId
from scheduler_svc.core.sequence import SequenceView
from scheduler_svc.core.session import Session
from scheduler_svc.core.stats import PoolMap

NOBODY = -1
CHAIN = 32
"""Blocks of a chain that are named, from the block towards its root."""


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """Every block at one moment; arrays are copies of [num_blocks].

    owner: a sequence whose table names the block (of several the one in the lowest row), NOBODY without one.
    content: equal for two findable blocks if and only if they hold the same tokens after the same prefix, 0
    for a block that is not findable. tables: block tables of the first rows. sequences: those that run, by
    row, then those that wait, in the order of the queue.
    """

    map: PoolMap
    owner: Int64Array
    content: Int64Array
    tables: dict[SeqId, Int32Array]
    sequences: tuple[SequenceView, ...]


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block. holders: (sequence, logical block number) of each table entry that names it. key: 32 hex
    digits, empty when it is not findable. parents: findable blocks before it in its chain, the nearest first,
    at most CHAIN; depth_known: whether they reach the root. children: findable blocks after it. held_for:
    seconds since it was handed out, None for a free one. idle_for: seconds since nobody holds it, None when
    somebody does or it is free.
    """

    block: BlockId
    state: int
    ref_count: int
    fill: int
    holders: tuple[tuple[SeqId, int], ...]
    key: str
    parents: tuple[BlockId, ...]
    depth_known: bool
    children: tuple[BlockId, ...]
    held_for: float | None
    idle_for: float | None


def picture_of(lifecycle: Lifecycle, max_tables: int, max_sequences: int) -> PoolPicture:
    """max_tables: rows whose block tables are copied. max_sequences: sequences that are listed."""
    session = lifecycle.session
    listed = _listed(lifecycle, max_sequences)
    pool_map = pool_map_of(session)
    owner = np.full(len(pool_map.state), NOBODY, np.int64)
    tables: dict[SeqId, Int32Array] = {}
    if session is None:
        return PoolPicture(pool_map, owner, owner.copy(), tables, listed)
    rows = session.rows
    running = rows.running()
    for seq in reversed(running):
        owner[rows.blocks_of(seq.row)] = seq.seq_id
    for seq in running[:max_tables]:
        tables[seq.seq_id] = rows.blocks_of(seq.row).copy()
    content = session.manager.index.uids[: len(owner)].copy()
    return PoolPicture(pool_map, owner, content, tables, listed)


def _listed(lifecycle: Lifecycle, count: int) -> tuple[SequenceView, ...]:
    found = lifecycle.session.rows.running()[:count] if lifecycle.session is not None else []
    waiting = lifecycle.waiting.sequences()
    found += heapq.nsmallest(count - len(found), waiting, key=lambda seq: seq.order)
    return tuple(view_of(lifecycle, seq) for seq in found)


def block_view_of(session: Session, block: BlockId, now: float) -> BlockView:
    """Costs a walk over all tables and, for a findable block, over the index for each link of its chain."""
    pool, index, rows = session.manager.pool, session.manager.index, session.rows
    pool_map = pool_map_of(session)
    state = int(pool_map.state[block])
    findable = bool(pool.cached[block])
    parents, rooted = _parents(session, block) if findable else ((), False)
    children = np.flatnonzero((index.parents == index.uids[block]) & (index.uids != 0)) if findable else ()
    held = state != 0
    idle = held and pool.ref_count[block] == 0
    return BlockView(
        block=block,
        state=state,
        ref_count=int(pool.ref_count[block]),
        fill=int(pool_map.fill[block]),
        holders=tuple(
            (seq.seq_id, int(at))
            for seq in rows.running()
            for at in np.flatnonzero(rows.blocks_of(seq.row) == block)
        ),
        key=index.key_of(block).hex() if findable else "",
        parents=parents,
        depth_known=rooted,
        children=tuple(BlockId(int(child)) for child in children[:CHAIN]),
        held_for=max(0.0, now - pool.clock.taken_at(block)) if held else None,
        idle_for=max(0.0, now - pool.clock.released_at(block)) if idle else None,
    )


def _parents(session: Session, block: BlockId) -> tuple[tuple[BlockId, ...], bool]:
    """The blocks before this one, and whether the last of them begins a context."""
    index = session.manager.index
    found: list[BlockId] = []
    at = int(block)
    while len(found) < CHAIN:
        parent = int(index.parents[at])
        holders = np.flatnonzero(index.uids == parent)
        if parent < 0 or not len(holders):
            return tuple(found), parent < 0  # the root of a namespace is a negative number
        at = int(holders[0])
        found.append(BlockId(at))
    return tuple(found), False

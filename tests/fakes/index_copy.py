"""A copy of the prefix index, kept by one who follows it.

Owns the copy; knows only what the feed says. Invariant: after each take it is compared with the index itself,
block by block.
"""

from typing import Any

import numpy as np

from scheduler_svc.core.kv_events import BlocksRemoved, BlocksStored, CacheCleared
from scheduler_svc.core.scheduler import Scheduler

Entry = tuple[bytes, int, int, tuple[int, ...]]
"""Key, identity, parent's identity, tokens."""


class IndexCopy:
    """What can be found, by block."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}

    def take(self, change: BlocksStored | BlocksRemoved | CacheCleared) -> None:
        if isinstance(change, CacheCleared):
            self.entries.clear()
        elif isinstance(change, BlocksRemoved):
            for block, uid in zip(change.blocks.tolist(), change.uids.tolist(), strict=True):
                assert self.entries.pop(block)[1] == uid
        else:
            for block, entry in entries_of(change).items():
                assert block not in self.entries, f"block {block} is stored twice"
                known = {uid for _, uid, _, _ in self.entries.values()}
                assert entry[2] < 0 or entry[2] in known, f"the parent of block {block} is not stored"
                self.entries[block] = entry


def entries_of(stored: BlocksStored) -> dict[int, Entry]:
    lines = zip(
        *(stored.blocks.tolist(), stored.keys, stored.uids.tolist(), stored.parents.tolist()),
        *(stored.fills.tolist(), stored.tokens.tolist()),
        strict=True,
    )
    return {
        block: (key.tobytes() if fill == len(tokens) else b"", uid, parent, tuple(tokens[:fill]))
        for block, key, uid, parent, fill, tokens in lines
    }


def entries_now(core: Scheduler) -> dict[int, Entry]:
    """The index as it is, read from its arrays."""
    session = core._lifecycle.session
    if session is None:
        return {}
    index: Any = session.manager.index
    fill = getattr(index, "fill", np.full(len(index.tokens), index.block_size, np.int32))
    return {
        block: (
            index.key_of(block) if fill[block] == index.block_size else b"",
            int(index.uids[block]),
            int(index.parents[block]),
            tuple(index.tokens[block, : fill[block]].tolist()),
        )
        for block in np.flatnonzero(session.manager.pool.cached).tolist()
    }

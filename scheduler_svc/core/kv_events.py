"""What becomes findable in the prefix index and what stops being so, for those who follow it.

Owns the log of changes between two looks; knows neither numbers of events nor readers. Invariant: whoever
applies the changes in order to a copy of the index holds exactly the index; and without a log an index does
nothing for it.

Changes are noted as the arrays that the index is changed with, in batches.
"""

from dataclasses import dataclass

import numpy as np

from scheduler_svc.core.block_hash import UInt64Array
from scheduler_svc.core.linked_lists import Index
from scheduler_svc.core.plan import Int32Array, Int64Array


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """k blocks became findable, parents before their children.

    keys: [k, 2]. uids, parents: [k] identities of contents; a negative parent is a namespace's root. fills:
    [k] how many of tokens [k, block_size] count. A block with fewer tokens than block_size is a tail: it has
    no key.
    """

    blocks: Int32Array
    keys: UInt64Array
    uids: Int64Array
    parents: Int64Array
    fills: Int32Array
    tokens: Int32Array


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """k blocks cannot be found any more. uids: [k] what they held."""

    blocks: Int32Array
    uids: Int64Array


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """No block can be found any more."""


KvChange = BlocksStored | BlocksRemoved | CacheCleared


class KvLog:
    """Changes since the last `take`."""

    def __init__(self) -> None:
        self._changes: list[KvChange] = []

    def stored(self, batch: BlocksStored) -> None:
        self._changes.append(batch)

    def removed(self, blocks: Index, uids: Int64Array) -> None:
        if len(blocks):
            self._changes.append(BlocksRemoved(blocks.astype(np.int32), uids))

    def cleared(self) -> None:
        self._changes = [CacheCleared()]  # what was before it matters to nobody

    def take(self) -> list[KvChange]:
        changes, self._changes = self._changes, []
        return changes

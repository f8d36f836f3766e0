"""Blocks that can be found again by content: keys, identities and token ids in flat arrays, a bucket table
over them.

Owns which block holds which content; does not know sequences or reference counts. Invariant: a block is found
only after its key, its token ids and its parent's identity agree, so a hash collision costs a miss and never
a wrong hit.

A *uid* names one content: two full blocks have the same uid if and only if their token ids and their
parents' uids are equal, which was verified when they were published. So comparing uids compares whole
prefixes. A tail, which is not full, has a uid of its own, for nothing follows it. A full block is found by
its key; what follows a block, full or not, by the identity of its parent.
"""

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.block_hash import UInt64Array
from scheduler_svc.core.kv_events import BlocksStored, KvLog
from scheduler_svc.core.linked_lists import Index, LinkedLists
from scheduler_svc.core.plan import Int32Array, Int64Array
from scheduler_svc.core.stats import Counters

MAX_SIBLINGS = 16
"""Children of one parent that are looked at for a match that ends inside a block."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
_WORD = (1 << 64) - 1
_NO_BLOCKS: Int32Array = np.empty(0, np.int32)


class PrefixIndex:
    """At most num_blocks entries, one a block. Arrays: n blocks of a chain, k unrelated blocks."""

    def __init__(self, num_blocks: int, block_size: int, counters: Counters) -> None:
        self.block_size = block_size
        self.num_entries = 0
        self.num_published = 0
        self.log: KvLog | None = None  # of those who follow the index
        self._counters = counters
        self.tokens: Int32Array = np.zeros((num_blocks, block_size), np.int32)
        self.key_low: UInt64Array = np.zeros(num_blocks + 1, np.uint64)
        self.key_high: UInt64Array = np.zeros(num_blocks + 1, np.uint64)
        self.fill: Int32Array = np.zeros(num_blocks, np.int32)  # tokens; less than block_size: a tail
        self.uids: Int64Array = np.zeros(num_blocks + 1, np.int64)  # 0: not in the index
        self.parents: Int64Array = np.zeros(num_blocks + 1, np.int64)
        self.published_in: Int64Array = np.zeros(num_blocks, np.int64)
        buckets = 1 << max(num_blocks - 1, 1).bit_length()
        self._mask = np.uint64(buckets - 1)
        self._by_key = LinkedLists(num_blocks, buckets)
        self._by_parent = LinkedLists(num_blocks, buckets)  # and first token
        self._end = num_blocks
        self._last_uid = 0

    def may_hold(self, key: UInt64Array) -> bool:
        """Whether some full block has this key [1, 2]; a collision is possible."""
        return bool(self._first_with(key)[0] != self._end)

    def match(self, keys: UInt64Array, tokens: Int32Array, root_uid: int) -> Int32Array:
        """[m] the blocks that hold the longest findable prefix of a chain. keys: [n, 2]; tokens: [n,
        block_size].
        """
        if not len(keys) or not self.may_hold(keys[:1]):
            return _NO_BLOCKS
        found = self._first_with(keys)
        parents = np.empty(len(keys), np.int64)
        start = 0
        while start < len(keys):
            parents[0] = root_uid
            parents[1:] = self.uids[found[:-1]]
            bad = np.flatnonzero(~self._verified(found[start:], tokens[start:], parents[start:]))
            if not len(bad):
                return found
            at = start + int(bad[0])
            found[at] = self._search(int(found[at]), keys[at], tokens[at], int(parents[at]))
            if found[at] == self._end:
                return found[:at]
            start = at
        return found

    def publish_chain(
        self, blocks: Int32Array, keys: UInt64Array, tokens: Int32Array, parent_uid: int, step_id: int
    ) -> int:
        """Makes n consecutive blocks of one sequence findable; returns the last one's uid.

        step_id: the step that is to write them, 0 if they are computed.
        """
        uids = np.empty(len(blocks), np.int64)
        known = self.match(keys, tokens, parent_uid)
        uids[: len(known)] = self.uids[known]
        uids[len(known) :] = self._new_uids(len(blocks) - len(known))
        parents = np.concatenate(([parent_uid], uids[:-1]))
        self._insert(blocks, keys, tokens, uids, parents, step_id)
        return int(uids[-1])

    def publish_each(
        self, blocks: Int32Array, keys: UInt64Array, tokens: Int32Array, parents: Int64Array
    ) -> Int64Array:
        """Makes one computed block of each of k sequences findable; returns their uids [k]."""
        if len(set(keys[:, 0].tolist())) < len(blocks):  # perhaps the same content twice
            one_by_one = [
                self.publish_chain(blocks[i : i + 1], keys[i : i + 1], tokens[i : i + 1], int(parents[i]), 0)
                for i in range(len(blocks))
            ]
            return np.array(one_by_one, np.int64)
        uids = self._new_uids(len(blocks))
        found = self._first_with(keys)
        for i in (found != self._end).nonzero()[0].tolist():
            twin = self._search(int(found[i]), keys[i], tokens[i], int(parents[i]))
            if twin != self._end:
                uids[i] = self.uids[twin]
        self._insert(blocks, keys, tokens, uids, parents, 0)
        return uids

    def publish_tail(self, block: int, tokens: Int32Array, parent_uid: int) -> None:
        """Makes a computed block findable that holds these tokens [fewer than block_size] after its
        parent.
        """
        at = np.array([block], np.int32)
        self.tokens[block, : len(tokens)], self.tokens[block, len(tokens) :] = tokens, 0
        self.fill[block], self.key_low[block], self.key_high[block] = len(tokens), 0, 0
        self._last_uid += 1
        self.uids[block], self.parents[block] = self._last_uid, parent_uid
        self._by_parent.push_one(block, self._child_bucket(parent_uid, int(tokens[0])))
        self._note_published(at)

    def remove(self, blocks: Index) -> None:
        """These blocks are not findable any more."""
        if self.log is not None:
            self.log.removed(blocks, self.uids[blocks])
        full = self.fill[blocks] == self.block_size
        self._by_key.remove(blocks if full.all() else blocks[full])
        self._by_parent.remove(blocks)
        self.uids[blocks] = 0
        self.published_in[blocks] = 0
        self.num_entries -= len(blocks)

    def key_of(self, block: int) -> bytes:
        """The 16 bytes of the key under which an indexed block is found; none for a tail."""
        if self.fill[block] < self.block_size:
            return b""
        return int(self.key_low[block]).to_bytes(8, "little") + int(self.key_high[block]).to_bytes(
            8, "little"
        )

    def holds(self, block: int) -> bool:
        """Whether the block is in the bucket of its key, if it is full, and in that of its parent; for
        audits.
        """
        by_key = int(self.key_low[block] & self._mask)
        by_parent = int(self._child_buckets(self.parents[block : block + 1], self.tokens[block, :1])[0])
        keyed = self.fill[block] < self.block_size or block in self._by_key.walk(by_key)
        return keyed and block in self._by_parent.walk(by_parent)

    def partial_match(self, tokens: Int32Array, parent_uid: int, before: int) -> tuple[int, int]:
        """(block, count) of the block after this parent that shares the most leading tokens with these [at
        most block_size]; count 0 if none does.

        before: only blocks count that steps before this one write. Copying the block and going on in the copy
        saves the shared tokens.
        """
        if not len(tokens):
            return 0, 0
        siblings: list[int] = []
        at = self._by_parent.head(self._child_bucket(parent_uid, int(tokens[0])))
        while at != self._end and len(siblings) < MAX_SIBLINGS:
            if self.parents[at] == parent_uid and self.published_in[at] < before:
                siblings.append(at)
            at = int(self._by_parent.next[at])
        if not siblings:
            return 0, 0
        differs = self.tokens[siblings, : len(tokens)] != tokens
        shared = np.where(differs.any(1), differs.argmax(1), len(tokens))
        shared = np.minimum(shared, self.fill[siblings])
        best = int(shared.argmax())
        return siblings[best], int(shared[best])

    def _first_with(self, keys: UInt64Array) -> Int32Array:
        """[k] for each key the first block of its bucket that stores it, `_end` where none does."""
        low, high = keys[:, 0], keys[:, 1]
        at = self._by_key.first((low & self._mask).astype(np.int64))
        others = self._others(at, low, high).nonzero()[0]
        while len(others):
            here = self._by_key.next[at[others]]
            at[others] = here
            others = others[self._others(here, low[others], high[others])]
        return at

    def _others(self, blocks: Int32Array, low: UInt64Array, high: UInt64Array) -> npt.NDArray[np.bool_]:
        """[k] True where there is a block, but with another key."""
        differ: npt.NDArray[np.bool_] = (self.key_low[blocks] != low) | (self.key_high[blocks] != high)
        differ &= blocks != self._end
        return differ

    def _verified(self, blocks: Int32Array, tokens: Int32Array, parents: Int64Array) -> npt.NDArray[np.bool_]:
        """[k] True where a block was found and its tokens and its parent agree."""
        there = blocks != self._end
        if there.all():
            same = (self.tokens[blocks] == tokens).all(1)
        else:
            same = there.copy()
            same[there] = (self.tokens[blocks[there]] == tokens[there]).all(1)
        verified: npt.NDArray[np.bool_] = same & (self.parents[blocks] == parents)
        return verified

    def _search(self, at: int, key: UInt64Array, tokens: Int32Array, parent: int) -> int:
        """The first block from `at` on that stores the key and verifies, else `_end`; counts the others."""
        while at != self._end:
            if self.key_low[at] == key[0] and self.key_high[at] == key[1]:
                if self.parents[at] == parent and (self.tokens[at] == tokens).all():
                    return at
                self._counters.prefix_collisions += 1
            at = int(self._by_key.next[at])
        return at

    def _insert(
        self,
        blocks: Int32Array,
        keys: UInt64Array,
        tokens: Int32Array,
        uids: Int64Array,
        parents: Int64Array,
        step_id: int,
    ) -> None:
        self.tokens[blocks] = tokens
        self.fill[blocks] = self.block_size
        self.key_low[blocks] = keys[:, 0]
        self.key_high[blocks] = keys[:, 1]
        self.uids[blocks] = uids
        self.parents[blocks] = parents
        self.published_in[blocks] = step_id
        self._by_key.push(blocks, (keys[:, 0] & self._mask).astype(np.int64))
        self._by_parent.push(blocks, self._child_buckets(parents, tokens[:, 0]))
        self._note_published(blocks)

    def _note_published(self, blocks: Index) -> None:
        self.num_entries += len(blocks)
        self.num_published += len(blocks)
        if self.log is not None:
            self.log.stored(self._described(blocks))

    def snapshot(self) -> BlocksStored:
        """All that can be found now."""
        found = np.flatnonzero(self.uids[:-1]).astype(np.int32)
        found = found[
            np.argsort(self.uids[found], kind="stable")
        ]  # a parent's uid is older than its children's
        return self._described(found)

    def descendants(self, root_uid: int) -> Int32Array:
        """[k] the blocks of one namespace."""
        blocks = np.flatnonzero(self.uids[:-1]).astype(np.int32)
        uids, at = np.unique(self.uids[blocks], return_index=True)
        above = self.parents[blocks[at]]  # [u] of each content its parent's uid
        while True:
            inner = above > 0  # not at a root yet
            if not inner.any():
                break
            above[inner] = above[np.searchsorted(uids, above[inner])]
        mine: Int32Array = blocks[above[np.searchsorted(uids, self.uids[blocks])] == root_uid]
        return mine

    def _described(self, blocks: Index) -> BlocksStored:
        keys = np.stack((self.key_low[blocks], self.key_high[blocks]), 1)
        return BlocksStored(
            blocks.astype(np.int32),
            keys,
            self.uids[blocks],
            self.parents[blocks],
            self.fill[blocks],
            self.tokens[blocks],
        )

    def _child_buckets(self, parents: Int64Array, first_tokens: Int32Array) -> Int64Array:
        mixed = (parents.view(np.uint64) + first_tokens.astype(np.uint64)) * _MIX
        return ((mixed >> np.uint64(32)) & self._mask).astype(np.int64)

    def _child_bucket(self, parent: int, first_token: int) -> int:
        """`_child_buckets` of one."""
        mixed = (parent + first_token) * int(_MIX) & _WORD
        return (mixed >> 32) & int(self._mask)

    def _new_uids(self, count: int) -> Int64Array:
        first = self._last_uid + 1
        self._last_uid += count
        return np.arange(first, first + count, dtype=np.int64)

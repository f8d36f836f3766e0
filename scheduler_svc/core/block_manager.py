"""Blocks for sequences: matching prefixes, allocating, publishing full blocks, freeing.

Owns the block pool and the prefix index and is the only one that knows both blocks and rows; decides nothing
about who runs. Invariant: what is findable was written, or will be by a step already planned, by exactly the
tokens it is found under; and the cached flag of the pool says exactly what the index holds.
"""

import numpy as np

from scheduler_svc.core.ages import Ages
from scheduler_svc.core.batch_builder import BatchBuilder
from scheduler_svc.core.block_hash import HashFunction, Root, chain_keys, next_keys, root_of
from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.copy_on_write import CopyOnWrite
from scheduler_svc.core.match import Match
from scheduler_svc.core.plan import Capacity, Int32Array, Int64Array, SchedulerConfig, StepId
from scheduler_svc.core.prefix_index import PrefixIndex
from scheduler_svc.core.rows import Rows
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.stats import Counters

ANY_STEP = StepId(1 << 62)
"""Later than every step."""
SETTLE_AT = 128
"""Full blocks of generated tokens that are hashed together at the latest."""


class BlockManager:
    """The device residency of one session with a worker."""

    def __init__(
        self,
        capacity: Capacity,
        config: SchedulerConfig,
        rows: Rows,
        counters: Counters,
        ages: Ages,
        hash_block: HashFunction,
    ) -> None:
        self.block_size = capacity.block_size
        self.pool = BlockPool(capacity.num_blocks, counters, ages)
        self.index = PrefixIndex(capacity.num_blocks, capacity.block_size, counters)
        self._fingerprint = capacity.model_fingerprint
        self._rows = rows
        self._seed = config.hash_seed
        self.copies = CopyOnWrite(rows, self.pool, counters, self._take)
        self._enabled = config.prefix_cache
        self._copies_prefixes = config.match_inside_blocks
        self._hash_block = hash_block
        self._zero: list[Int32Array] = []
        self._chains: list[tuple[Sequence, int, int, Int32Array, StepId]] = []
        self._num_chained = 0
        self._unsettled: list[tuple[Int64Array, Int32Array]] = []
        self._unsettled_rows: set[int] = set()

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    @property
    def num_published(self) -> int:
        """Blocks ever made findable; those of generated tokens count once they are hashed."""
        return self.index.num_published + self._num_chained

    def caches(self, seq: Sequence) -> bool:
        """Whether the sequence reads and publishes cached blocks."""
        return self._enabled and seq.request.use_prefix_cache

    def match_prefix(self, seq: Sequence, step_id: StepId) -> Match:
        """What of this sequence's context is cached; at least one token is left to compute.

        step_id: the step being planned. Valid only until the next change of the pool or the index.
        """
        if not self.caches(seq):
            return Match(np.empty(0, np.int32), 0, 0, 0)
        self.settle()
        size, root = self.block_size, self._root(seq).uid
        usable = (len(seq.tokens) - 1) // size
        blocks = np.empty(0, np.int32)
        if self._begins_as_another(seq, usable):
            self._hash_blocks(seq, len(seq.tokens) // size)
            tokens = seq.tokens[: usable * size].reshape(usable, size)
            blocks = self.index.match(seq.keys[:usable], tokens, root)
        uid = int(self.index.uids[blocks[-1]]) if len(blocks) else root
        if not self._copies_prefixes:
            return Match(blocks, 0, 0, uid)
        source, count = self._match_inside(seq, len(blocks), uid, step_id)
        return Match(blocks, source, count, uid)

    def lost_to_alignment(self, seq: Sequence, match: Match, step_id: StepId) -> int:
        """Tokens that a cached block holds too, where none is copied for them."""
        if not self.caches(seq) or self._copies_prefixes:
            return 0
        return self._match_inside(seq, len(match.blocks), match.uid, step_id)[1]

    def _match_inside(self, seq: Sequence, blocks: int, uid: int, step_id: StepId) -> tuple[int, int]:
        start = blocks * self.block_size
        end = min(start + self.block_size, len(seq.tokens) - 1)
        return self.index.partial_match(seq.tokens[start:end], uid, step_id)

    def _begins_as_another(self, seq: Sequence, usable: int) -> bool:
        """Whether the first of the usable full blocks may be cached; most prompts begin as no other."""
        if not usable:
            return False
        self._hash_blocks(seq, 1)
        return self.index.may_hold(seq.keys[:1])

    def _hash_blocks(self, seq: Sequence, count: int) -> None:
        """Hashes those of the first `count` full blocks of the sequence's tokens that have no key yet."""
        if seq.keys_of != (self._fingerprint, self.block_size):
            seq.keys, seq.keys_of = seq.keys[:0], (self._fingerprint, self.block_size)
        done = len(seq.keys)
        if done < count:
            parent = seq.keys[-1] if done else self._root(seq).key
            tokens = seq.tokens[done * self.block_size : count * self.block_size]
            keys = chain_keys(self._hash_block, parent, tokens, self.block_size)
            seq.keys = np.concatenate((seq.keys, keys)) if done else keys

    def start(self, seq: Sequence, match: Match, final: int, batch: BatchBuilder) -> int:
        """Gives the sequence a row whose table begins with what is cached; returns the row."""
        hits = match.blocks
        row = self._rows.set_up(seq, len(hits) * self.block_size + match.count, final)
        rows = self._rows
        rows.caches[row] = self.caches(seq)
        if len(hits):
            self.pool.share(hits)
            rows.append_blocks(row, hits)
            batch.add_entries(row, 0, hits)
            rows.tail_uid[row] = self.index.uids[hits[-1]]
            rows.tail_key[row] = seq.keys[len(hits) - 1]
        elif rows.caches[row]:
            root = self._root(seq)
            rows.tail_uid[row], rows.tail_key[row] = root.uid, root.key
        if match.count:
            self.copies.begin(row, match.source, batch)
        return row

    def coverable(self, row: int) -> int:
        """Tokens after the scheduled ones that the row's blocks and the pool's available ones could hold."""
        rows = self._rows
        return (int(rows.num_blocks[row]) + self.pool.available) * self.block_size - int(rows.scheduled[row])

    def cover(self, row: int, end: int, batch: BatchBuilder) -> None:
        """Allocates what the row lacks to hold `end` tokens; the pool must have it."""
        held = int(self._rows.num_blocks[row])
        lacking = self.blocks_for(end) - held
        if lacking > 0:
            blocks = self._take(lacking)
            self._rows.append_blocks(row, blocks)
            batch.add_entries(row, held, blocks)

    def open_blocks(self, rows: Int64Array, batch: BatchBuilder) -> None:
        """One more block for each of these rows; the pool must have them."""
        blocks = self._take(len(rows))
        offsets = self._rows.append_block_each(rows, blocks)
        batch.add_entry_each(rows, offsets, blocks)

    def publish_scheduled(self, row: int, start: int, end: int, step_id: StepId) -> Int32Array:
        """Makes the blocks findable that tokens [start, end) complete, all ids being known; returns them.

        They enter the index later (`index_scheduled`), so that their plan need not wait for their hashes.
        """
        rows, size = self._rows, self.block_size
        first, last = start // size, end // size
        blocks = rows.table[row, first:last].copy()
        seq = rows.sequence[row]
        if not len(blocks) or not rows.caches[row] or seq is None:
            return blocks[:0]
        self._chains.append((seq, first, last, blocks, step_id))
        self._num_chained += len(blocks)
        self.pool.cached[blocks] = True
        return blocks

    def index_scheduled(self) -> None:
        """After it the index holds what `publish_scheduled` was told of; no decision depends on when."""
        if not self._chains:
            return
        chains, self._chains, self._num_chained = self._chains, [], 0
        rows, size = self._rows, self.block_size
        for seq, first, last, blocks, step_id in chains:
            row = seq.row
            self._hash_blocks(seq, last)
            tokens, keys = (
                rows.history[row, first * size : last * size].reshape(-1, size),
                seq.keys[first:last],
            )
            parent = int(rows.tail_uid[row])
            rows.tail_uid[row] = self.index.publish_chain(blocks, keys, tokens, parent, step_id)
            rows.tail_key[row] = keys[-1]

    def publish_generated(self, rows: Int64Array, lengths: Int32Array) -> None:
        """Makes the block findable that ends at token lengths[i] of row i; its ids are known and computed.

        Hashing waits until somebody looks (`settle`) or enough blocks have come together: one by one they
        would cost ten times as much.
        """
        fresh = rows.tolist()
        if not self._unsettled_rows.isdisjoint(fresh):
            self.settle()
        self._unsettled_rows.update(fresh)
        self._unsettled.append((rows, lengths))
        if len(self._unsettled_rows) >= SETTLE_AT:
            self.settle()

    def settle(self) -> None:
        """After it the index holds all that was published: whatever reads or changes the index begins with
        it.
        """
        self.index_scheduled()
        if self._unsettled:
            rows = np.concatenate([rows for rows, _ in self._unsettled])
            lengths = np.concatenate([lengths for _, lengths in self._unsettled])
            self._unsettled.clear()
            self._unsettled_rows.clear()
            self._index_generated(rows, lengths)

    def _index_generated(self, rows: Int64Array, lengths: Int32Array) -> None:
        table, size = self._rows, self.block_size
        blocks = table.table[rows, lengths // size - 1]
        tokens = table.history[rows[:, None], (lengths - size)[:, None] + np.arange(size)]
        keys = next_keys(self._hash_block, table.tail_key[rows], tokens)
        table.tail_uid[rows] = self.index.publish_each(blocks, keys, tokens, table.tail_uid[rows])
        table.tail_key[rows] = keys
        self.pool.cached[blocks] = True

    def release(self, row: int, *, trusted: bool) -> None:
        """Ends the row's stay and gives back its blocks, the last first.

        trusted: what it wrote is right; else those of its blocks that nobody else can see are zeroed.
        """
        self.settle()
        if trusted:
            self._publish_tail(row)
        blocks = self._rows.blocks_of(row)[::-1].copy()
        self._rows.release(row)
        self.pool.release(blocks)
        if not trusted:
            self.zero_later(blocks[(self.pool.ref_count[blocks] == 0) & ~self.pool.cached[blocks]])

    def _publish_tail(self, row: int) -> None:
        """Makes the row's last, partly filled block findable, as far as answered steps have written it."""
        rows, size = self._rows, self.block_size
        known = int(rows.known[row])
        if not (self._copies_prefixes and rows.caches[row] and known > rows.prefix_len[row]):
            return
        at, fill = divmod(known - 1, size)  # the newest token may not be computed yet
        block = int(rows.table[row, at]) if fill else 0
        if not fill or self.pool.cached[block] or self.pool.ref_count[block] != 1:
            return
        tokens, parent = rows.history[row, known - 1 - fill : known - 1], int(rows.tail_uid[row])
        if self.index.partial_match(tokens, parent, ANY_STEP)[1] < fill:
            self.index.publish_tail(block, tokens, parent)
            self.pool.cached[block] = True

    def flush(self, namespace: str | None) -> int:
        """Nothing that was computed so far, of one namespace or of all, is found any more; returns the blocks
        forgotten.

        Blocks in use stay with their holders, who publish nothing more during this stay.
        """
        self.settle()
        if namespace is None:
            blocks = np.flatnonzero(self.pool.cached).astype(np.int32)
        else:
            blocks = self.index.descendants(root_of(self._seed, self._fingerprint, namespace).uid)
        self.index.remove(blocks)
        self.pool.forget(blocks)
        for seq in self._rows.running():
            if namespace is None or seq.request.namespace == namespace:
                self._rows.caches[seq.row] = False
        return len(blocks)

    def withdraw(self, blocks: Int32Array, step_id: StepId) -> None:
        """Takes back what this step published, unless it was evicted since; zeroed before reuse."""
        self.index_scheduled()
        mine = blocks[self.index.published_in[blocks] == step_id]
        if len(mine):
            self.index.remove(mine)
            self.pool.forget(mine)
            self.zero_later(mine[self.pool.ref_count[mine] == 0])

    def distrust(self, blocks: Int32Array) -> None:
        """A stay that has ended left these blocks, its table; what it wrote last is not right after all."""
        self.index_scheduled()
        tail = blocks[-1:]
        if len(tail) and self.pool.cached[tail[0]] and self.index.fill[tail[0]] < self.block_size:
            self.index.remove(tail)
            self.pool.forget(tail)
        self.zero_later(blocks[(self.pool.ref_count[blocks] == 0) & ~self.pool.cached[blocks]])

    def zero_later(self, blocks: Int32Array) -> None:
        """The next plan zeroes these free blocks."""
        if len(blocks):
            self._zero.append(blocks)

    def take_zero_blocks(self) -> Int32Array:
        """[n] the blocks to zero in this plan, each once; a fenced one only when its transfer is done."""
        if not self._zero:
            return np.empty(0, np.int32)
        blocks = np.unique(np.concatenate(self._zero))
        fenced = self.pool.pins[blocks] > 0
        self._zero = [blocks[fenced]] if fenced.any() else []
        return blocks[~fenced]

    def _take(self, count: int) -> Int32Array:
        blocks, evicted = self.pool.take(count)
        if len(evicted):
            self.index.remove(evicted)
        return blocks

    def _root(self, seq: Sequence) -> Root:
        return root_of(self._seed, self._fingerprint, seq.request.namespace)

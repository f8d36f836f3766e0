"""What the index finds, and what it never finds. A07 in the small."""

import numpy as np

from scheduler_svc.core.block_hash import HashFunction, chain_keys, root_of, xxh3_128
from scheduler_svc.core.prefix_index import PrefixIndex
from scheduler_svc.core.stats import Counters

SIZE = 4
ROOT = root_of(b"seed", "model", "")


class Shelf:
    """An index, and chains of blocks given as flat tokens."""

    def __init__(self, num_blocks: int = 64, hash_block: HashFunction = xxh3_128) -> None:
        self.counters = Counters()
        self.index = PrefixIndex(num_blocks, SIZE, self.counters)
        self._hash = hash_block

    def publish(self, blocks: list[int], tokens: list[int]) -> None:
        keys, rows = self._chain(tokens)
        self.index.publish_chain(np.array(blocks, np.int32), keys, rows, ROOT.uid, 1)

    def find(self, tokens: list[int]) -> list[int]:
        keys, rows = self._chain(tokens)
        found: list[int] = self.index.match(keys, rows, ROOT.uid).tolist()
        return found

    def remove(self, *blocks: int) -> None:
        self.index.remove(np.array(blocks, np.int32))

    def _chain(self, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        flat = np.array(tokens, np.int32)
        return chain_keys(self._hash, ROOT.key, flat, SIZE), flat.reshape(-1, SIZE)


def seq(*starts: int) -> list[int]:
    """Blocks of tokens that begin with these numbers."""
    return [token for start in starts for token in range(start, start + SIZE)]


def test_the_longest_prefix_is_found() -> None:
    shelf = Shelf()
    shelf.publish([5, 3, 9], seq(0, 10, 20))
    assert shelf.find(seq(0, 10, 20)) == [5, 3, 9]
    assert shelf.find(seq(0, 10, 99)) == [5, 3]
    assert shelf.find(seq(10)) == []
    assert shelf.find([]) == []


def test_of_two_blocks_with_one_content_either_is_found_and_one_outlives_the_other() -> None:
    shelf = Shelf()
    shelf.publish([1, 2], seq(0, 10))
    shelf.publish([3, 4], seq(0, 10))
    assert shelf.index.num_entries == 4
    shelf.remove(1)
    assert shelf.find(seq(0, 10)) in ([3, 2], [3, 4])
    shelf.remove(4)
    assert shelf.find(seq(0, 10)) == [3, 2]


def test_many_chains_in_few_buckets() -> None:
    shelf = Shelf(num_blocks=300)
    chains = [seq(1000 * i, 1000 * i + 10, 1000 * i + 20) for i in range(100)]
    for i, chain in enumerate(chains):
        shelf.publish([3 * i, 3 * i + 1, 3 * i + 2], chain)
    for i, chain in enumerate(chains):
        assert shelf.find(chain) == [3 * i, 3 * i + 1, 3 * i + 2]
    shelf.remove(*range(0, 300, 3))
    assert all(shelf.find(chain) == [] for chain in chains)


def test_a07_equal_keys_of_different_blocks_are_told_apart_by_tokens_and_parent() -> None:
    shelf = Shelf(hash_block=lambda _: bytes(16))
    shelf.publish([1, 2], seq(0, 10))
    shelf.publish([3, 4], seq(50, 10))
    assert shelf.find(seq(0, 10)) == [1, 2]
    assert shelf.find(seq(50, 10)) == [3, 4], "the second block's tokens are equal, its parent is not"
    assert shelf.find(seq(10)) == []
    assert shelf.find(seq(77)) == []
    assert shelf.counters.prefix_collisions > 0
    shelf.remove(1, 2)
    assert shelf.find(seq(50, 10)) == [3, 4]


def test_blocks_of_several_sequences_at_once_share_an_identity_when_equal() -> None:
    shelf = Shelf()
    rows = np.array([seq(0), seq(10), seq(0)], np.int32)
    keys = np.concatenate([chain_keys(xxh3_128, ROOT.key, row, SIZE) for row in rows])
    uids = shelf.index.publish_each(np.array([7, 8, 9], np.int32), keys, rows, np.full(3, ROOT.uid))
    assert uids[0] == uids[2] != uids[1]
    again = shelf.index.publish_each(np.array([6], np.int32), keys[1:2], rows[1:2], np.full(1, ROOT.uid))
    assert again[0] == uids[1]


def test_leading_tokens_of_a_block_are_counted_after_the_right_parent_only() -> None:
    shelf = Shelf()
    shelf.publish([1, 2], seq(0, 10))
    parent = int(shelf.index.uids[1])
    assert shelf.index.partial_match(np.array([10, 11, 99], np.int32), parent, 9)[1] == 2
    assert shelf.index.partial_match(np.array([10, 11, 12], np.int32), parent, 9)[1] == 3
    assert shelf.index.partial_match(np.array([10, 11], np.int32), ROOT.uid, 9)[1] == 0
    assert shelf.index.partial_match(np.array([0, 5], np.int32), ROOT.uid, 9)[1] == 1
    assert shelf.index.partial_match(np.array([], np.int32), ROOT.uid, 9)[1] == 0

"""States, order of reuse and counters of the block pool."""

import numpy as np

from scheduler_svc.core.ages import Ages
from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.stats import Counters


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def pool_of(count: int) -> tuple[BlockPool, Counters]:
    counters = Counters()
    return BlockPool(count, counters, Ages()), counters


def test_the_lowest_numbers_are_taken_first() -> None:
    pool, _ = pool_of(4)
    taken, evicted = pool.take(3)
    assert taken.tolist() == [0, 1, 2]
    assert not len(evicted)
    assert (pool.available, pool.num_active) == (1, 3)


def test_the_block_given_back_last_is_taken_first() -> None:
    pool, _ = pool_of(4)
    pool.take(4)
    pool.release(ids(3, 1))
    assert pool.take(2)[0].tolist() == [1, 3]


def test_a11_unhashed_blocks_go_before_evictable_ones_and_those_by_age() -> None:
    pool, counters = pool_of(4)
    taken, _ = pool.take(4)
    pool.cached[taken[:3]] = True
    pool.release(ids(2, 1))  # a chain, deepest first
    pool.release(ids(0, 3))
    again, evicted = pool.take(3)
    assert again.tolist() == [3, 2, 1]
    assert evicted.tolist() == [2, 1]
    assert counters.blocks_evicted == 2
    assert not pool.cached[evicted].any()


def test_a_hit_takes_an_evictable_block_out_of_the_middle() -> None:
    pool, _ = pool_of(3)
    taken, _ = pool.take(3)
    pool.cached[taken] = True
    pool.release(taken)
    pool.share(ids(1))
    assert pool.lru.oldest(pool.lru.count).tolist() == [0, 2]
    assert pool.ref_count.tolist() == [0, 1, 0]
    assert pool.available == 2


def test_a_shared_block_is_active_until_its_last_holder_leaves() -> None:
    pool, counters = pool_of(2)
    taken, _ = pool.take(1)
    pool.cached[taken] = True
    pool.share(taken)
    pool.release(taken)
    assert (pool.num_active, counters.blocks_freed) == (1, 0)
    pool.release(taken)
    assert (pool.num_active, pool.lru.count, counters.blocks_freed) == (0, 1, 1)


def test_forgotten_content_makes_an_evictable_block_free_and_leaves_an_active_one() -> None:
    pool, _ = pool_of(2)
    taken, _ = pool.take(2)
    pool.cached[taken] = True
    pool.release(ids(0))
    pool.forget(ids(0, 1))
    assert (pool.num_free, pool.lru.count, pool.num_active) == (1, 0, 1)
    assert pool.free_blocks().tolist() == [0]


def test_i2_a_pinned_block_is_fenced_when_nobody_holds_it_and_never_handed_out() -> None:
    pool, _ = pool_of(3)
    taken, _ = pool.take(3)
    pool.cached[taken[:1]] = True
    pool.pin(taken[:2])
    pool.release(taken)
    assert (pool.num_fenced, pool.available, pool.num_active) == (2, 1, 0)
    assert pool.take(1)[0].tolist() == [2]
    pool.unpin(taken[:2])
    assert (pool.num_fenced, pool.num_free, pool.lru.count) == (0, 1, 1)


def test_a_fenced_block_can_be_hit_and_its_acknowledgement_then_frees_nothing() -> None:
    pool, _ = pool_of(2)
    taken, _ = pool.take(2)
    pool.cached[taken] = True
    pool.pin(taken)
    pool.release(taken)
    assert pool.num_listed(taken) == 0
    pool.share(taken[:1])
    assert (pool.num_fenced, pool.num_active, pool.available) == (1, 1, 0)
    pool.unpin(taken)
    assert (pool.num_fenced, pool.num_active, pool.available) == (0, 1, 1)


def test_a_fenced_block_whose_content_is_withdrawn_is_free_only_after_its_acknowledgement() -> None:
    pool, _ = pool_of(1)
    taken, _ = pool.take(1)
    pool.cached[taken] = True
    pool.pin(taken)
    pool.release(taken)
    pool.forget(taken)
    assert (pool.num_fenced, pool.available) == (1, 0)
    pool.unpin(taken)
    assert (pool.num_free, pool.lru.count) == (1, 0)

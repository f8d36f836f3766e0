"""Who follows the feed holds exactly the prefix index, after every operation and fault."""

import random

import pytest

from scheduler_svc.core.block_hash import HashFunction, xxh3_128
from scheduler_svc.core.kv_events import BlocksRemoved, BlocksStored, CacheCleared
from tests.fakes.core_driver import CoreDriver
from tests.fakes.index_copy import IndexCopy, entries_now, entries_of
from tests.fakes.random_run import RandomRun, random_config


def constant_hash(_: bytes) -> bytes:
    return bytes(16)


@pytest.mark.parametrize("hash_block", [xxh3_128, constant_hash])
@pytest.mark.parametrize("seed", range(6))
def test_a_follower_holds_the_index_after_every_operation(seed: int, hash_block: HashFunction) -> None:
    """Lazily settled blocks, evictions, withdrawals, flushes and lost workers included."""
    chance = random.Random(seed)
    size = chance.choice([1, 2, 3, 4])
    config = random_config(chance, prefix_cache=True)
    driver = CoreDriver(
        chance.choice([16, 32, 64]) // size,
        size,
        config,
        max_model_len=40,
        vocab_size=40,
        hash_block=hash_block,
    )
    run = RandomRun(driver, chance)
    copy, kinds = IndexCopy(), set()
    run.operate(30)
    driver.core.kv_feed.follow(True)
    snapshot = driver.core.kv_feed.snapshot()
    if snapshot is not None:
        copy.take(snapshot)
    for _ in range(250):
        run.operate(1)
        for change in driver.core.kv_feed.take_changes():
            kinds.add(type(change))
            copy.take(change)
        assert copy.entries == entries_now(driver.core)
    assert kinds == {BlocksStored, BlocksRemoved, CacheCleared}
    later = driver.core.kv_feed.snapshot()
    assert copy.entries == ({} if later is None else entries_of(later))
    run.finish()


def test_changes_are_seen_at_every_look_and_not_only_in_sum() -> None:
    """One look after a long time, too, leads to the index: evicted and refilled blocks come in order."""
    chance = random.Random(3)
    driver = CoreDriver(10, 2, random_config(chance, prefix_cache=True), max_model_len=40, vocab_size=40)
    run = RandomRun(driver, chance)
    driver.core.kv_feed.follow(True)
    copy = IndexCopy()
    for _ in range(10):
        run.operate(60)
        for change in driver.core.kv_feed.take_changes():
            copy.take(change)
        assert copy.entries == entries_now(driver.core)


def test_nothing_is_noted_when_nobody_follows() -> None:
    driver = CoreDriver(16, 2)
    driver.add([1, 2, 3, 4, 5], 4)
    driver.run()
    session = driver.core._lifecycle.session
    assert session is not None
    assert session.manager.index.log is None
    assert driver.core.kv_feed.take_changes() == []
    driver.core.kv_feed.follow(True)
    driver.core.kv_feed.follow(False)
    assert session.manager.index.log is None

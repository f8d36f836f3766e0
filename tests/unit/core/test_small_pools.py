"""A03: pools of 1, 2, 3 blocks and requests that outgrow them; never a livelock, never an assertion."""

import pytest

from scheduler_svc.core.plan import FinishReason, Refusal, SchedulerConfig
from tests.fakes.core_driver import CoreDriver


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a03_what_is_refused_does_not_hold_up_the_small_ones(depth: int) -> None:
    core = CoreDriver(8, 16, SchedulerConfig(depth=depth))
    assert isinstance(core.offer(list(range(200)), max_tokens=10), Refusal)
    assert isinstance(core.offer(list(range(100)), max_tokens=100), Refusal)
    outgrows = core.add(list(range(100)), None)
    small = [core.add([i, i + 1], 5) for i in range(5)]
    assert core.run(max_steps=200)
    assert core.reason(outgrows) is FinishReason.KV_POOL
    assert core.finished[outgrows].output_len == 8 * 16 + 1 - 100, "the token after the last slot needs none"
    assert all(core.reason(seq_id) is FinishReason.LENGTH for seq_id in small)


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
@pytest.mark.parametrize("block_size", [1, 2, 16])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_tiny_pools_drain(num_blocks: int, block_size: int, depth: int) -> None:
    core = CoreDriver(num_blocks, block_size, SchedulerConfig(depth=depth, max_num_seqs=4))
    slots = num_blocks * block_size
    for length in range(1, slots + 1):
        core.add(list(range(length)), slots + 1 - length)
        core.add([7] * length, None)
    core.run(max_steps=5000)
    core.check_outputs()
    assert {finished.reason for finished in core.finished.values()} <= {
        FinishReason.LENGTH,
        FinishReason.KV_POOL,
    }
    assert core.core.stats().blocks_active == 0


def test_a_victim_that_has_outgrown_the_pool_by_sharing_ends_instead_of_waiting_for_ever() -> None:
    """Two sequences share all but their tails; the worse placed one fills the pool while both run."""
    prefix = list(range(8))
    core = CoreDriver(4, 4, SchedulerConfig(watermark_blocks=0))
    core.add([*prefix, 100], None, priority=1)
    core.add([*prefix, 101], None, priority=0)
    core.run(max_steps=500)
    core.check_outputs()
    assert {finished.reason for finished in core.finished.values()} == {FinishReason.KV_POOL}


def test_block_size_1_and_4096() -> None:
    for num_blocks, block_size in ((64, 1), (2, 4096)):
        core = CoreDriver(num_blocks, block_size)
        first = core.add([1, 2, 3, 4, 5], 10)
        core.run()
        again = core.add([1, 2, 3, 4, 5], 10)
        core.run()
        core.check_outputs()
        assert (core.cached[first], core.cached[again]) == (0, 4)

"""A05, A06, A07, A09, A10, A11, A28: what is hit, what never is, and how it is counted."""

import random

import numpy as np
import pytest

from scheduler_svc.core.block_hash import xxh3_128
from scheduler_svc.core.plan import Capacity, Epoch, FinishReason, SchedulerConfig, SeqId
from scheduler_svc.core.prefix_index import MAX_SIBLINGS
from tests.fakes.core_driver import CoreDriver

TEXT = list(range(1, 101))


def blocks_of(core: CoreDriver, seq_id: int) -> list[int]:
    return [block for block, *_ in core.core.sequence_blocks(SeqId(seq_id))]


def test_a05_an_evicted_text_misses() -> None:
    core = CoreDriver(4, 4)
    for prompt in (TEXT[:13], [500 + token for token in TEXT[:13]]):
        core.add(prompt, 1)
        core.run()
    again = core.add(TEXT[:13], 1)
    core.run()
    assert core.cached[again] == 0
    core.check_outputs()


def test_a06_a_block_is_hit_from_the_plan_on_that_fills_it_and_never_before() -> None:
    core = CoreDriver(64, 4, SchedulerConfig(max_num_batched_tokens=12))
    writer = core.add(TEXT[:48], 2)
    reader = core.add([*TEXT[:16], 777], 2)
    core.schedule()
    assert reader not in core.cached, "the writer's first chunk took the budget"
    plan = core.schedule()
    assert plan is not None
    assert core.cached[reader] == 16, "3 blocks of the first plan, and one that this plan fills before"
    assert blocks_of(core, reader)[:4] == blocks_of(core, writer)[:4]
    core.run()
    core.check_outputs()


def test_a_plan_waits_for_no_hash_but_that_of_the_first_block() -> None:
    hashed: list[bytes] = []

    def counted(data: bytes) -> bytes:
        hashed.append(data)
        return xxh3_128(data)

    core = CoreDriver(64, 4, hash_block=counted)
    core.add(TEXT[:42], 1)
    assert not hashed
    plan = core.core.schedule(0.0)
    assert plan is not None
    assert len(plan.positions) == 42
    assert len(hashed) == 1, "whether any other begins so"
    assert core.core.schedule(0.0) is None
    assert len(hashed) == 10, "the rest once the plan has left"
    assert len({data[16:] for data in hashed}) == 10


def test_a06_sixteen_requests_with_one_prefix_compute_it_once() -> None:
    core = CoreDriver(64, 4)
    requests = [core.add([*TEXT[:40], 200 + i], 3) for i in range(16)]
    plan = core.schedule()
    assert plan is not None
    assert len(plan.positions) == 41 + 15
    assert [core.cached[seq_id] for seq_id in requests] == [0] + [40] * 15
    core.run()
    core.check_outputs()


def test_a06_a_failed_writer_takes_its_readers_back_and_leaves_nothing_to_hit() -> None:
    core = CoreDriver(64, 4)
    writer = core.add([*TEXT[:8], 900], 5)
    reader = core.add([*TEXT[:16], 901], 5)
    readers_reader = core.add([*TEXT[:16], 902], 5)
    bystander = core.add([800, 801, 802], 5)
    core.fill()
    core.answer_failed([core.plans[0].setups[0].row])
    assert core.reason(writer) is FinishReason.ERROR
    assert core.core.stats().counters.rollbacks == 2
    assert core.core.stats().prefix_entries == 0
    assert [len(core.outputs[seq_id]) for seq_id in (reader, readers_reader, bystander)] == [0, 0, 1]
    core.run()
    core.check_outputs()
    assert core.reason(readers_reader) is FinishReason.LENGTH
    zeroed = {block for plan in core.plans for block in plan.zero_blocks.tolist()}
    assert zeroed == set(core.plans[0].table_blocks.tolist()) - {core.plans[0].table_blocks.tolist()[-1]}


def test_a06_blocks_of_an_earlier_acknowledged_chunk_survive_the_failure_of_a_later_one() -> None:
    core = CoreDriver(64, 4, SchedulerConfig(max_num_batched_tokens=8, depth=1))
    core.add(TEXT[:17], 5)
    core.step()
    core.schedule()
    core.answer_failed([0])
    again = core.add(TEXT[:17], 5)
    core.run()
    assert core.cached[again] == 8
    core.check_outputs()


def constant_hash(_: bytes) -> bytes:
    return bytes(16)


def colliding_hash(data: bytes) -> bytes:
    return bytes([xxh3_128(data)[0] % 2]) * 16


@pytest.mark.parametrize("hash_block", [constant_hash, colliding_hash])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a07_forced_collisions_change_no_output(hash_block, depth: int) -> None:  # type: ignore[no-untyped-def]
    """The driver compares every token with the run alone, and every slot read with the context it was
    computed in.
    """
    chance = random.Random(7)
    core = CoreDriver(24, 4, SchedulerConfig(depth=depth, max_num_batched_tokens=32), hash_block=hash_block)
    for _ in range(40):
        shared = TEXT[: chance.choice([0, 4, 8, 12])]
        core.add([*shared, *(chance.choice([1, 5, 9]) for _ in range(chance.randint(1, 12)))], 4)
        core.step()
    core.run()
    core.check_outputs()
    counters = core.core.stats().counters
    assert counters.prefix_collisions > 0
    assert counters.prefix_hit_tokens > 0, "collisions do not switch the cache off"


def test_a07_the_seed_changes_the_keys() -> None:
    prefixes = set()
    for seed in (b"one", b"two"):
        core = CoreDriver(8, 4, SchedulerConfig(hash_seed=seed))
        seq_id = core.add(TEXT[:4], 5)
        core.schedule()
        prefixes.add(core.core.sequence_blocks(SeqId(seq_id))[0][3])
    assert len(prefixes) == 2


@pytest.mark.parametrize("fingerprint", ["model", "other weights"])
def test_a09_a_new_epoch_voids_every_block(fingerprint: str) -> None:
    core = CoreDriver(16, 4)
    core.add(TEXT[:12], 3)
    core.run()
    core.worker_ready(Capacity(Epoch(0), fingerprint, 16, 4, 4096, 256, 4096))
    assert core.core.stats().prefix_entries == 0
    again = core.add(TEXT[:12], 3)
    core.run()
    assert core.cached[again] == 0
    core.check_outputs()


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("block_size", [1, 2, 16])
@pytest.mark.parametrize("which", ["bs-1", "bs", "bs+1", "2bs"])
def test_a10_a_prompt_sent_three_times(block_size: int, which: str, inside: bool) -> None:
    length = {"bs-1": block_size - 1, "bs": block_size, "bs+1": block_size + 1, "2bs": 2 * block_size}[which]
    prompt = TEXT[: max(1, length)]
    core = CoreDriver(32, block_size, SchedulerConfig(match_inside_blocks=inside))
    hits = []
    for _ in range(3):
        seq_id = core.add(prompt, 3)
        plan = core.schedule()
        assert plan is not None
        assert plan.query_lens.min() >= 1
        hits.append(core.cached[seq_id])
        core.run()
    usable = len(prompt) - 1 if inside else (len(prompt) - 1) // block_size * block_size
    assert hits == [0, usable, usable]
    core.check_outputs()


def test_a10_two_live_requests_never_write_into_one_block() -> None:
    core = CoreDriver(32, 4)
    for _ in range(2):
        core.add(TEXT[:8], 6)
        core.step()
    core.run()  # every plan passes I4: nobody writes what another table or the index can see
    core.check_outputs()


def test_a11_an_indexed_blocks_parent_is_indexed_after_every_allocation() -> None:
    """The audit after each operation looks for orphans; the trace keeps the pool full."""
    chance = random.Random(11)
    core = CoreDriver(20, 2, SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16))
    for _ in range(150):
        branch = chance.choice([0, 30, 60])
        core.add(TEXT[branch : branch + chance.randint(1, 14)], chance.randint(1, 6))
        core.step()
    core.run()
    core.check_outputs()
    assert core.core.stats().counters.blocks_evicted > 100


def test_a28_recompute_after_preemption_is_no_hit() -> None:
    chance = random.Random(28)
    core = CoreDriver(12, 4, SchedulerConfig(max_num_seqs=6, watermark_blocks=0))
    prompts = [[chance.randrange(900) for _ in range(chance.randint(4, 10))] for _ in range(30)]
    for prompt in prompts:
        core.add(prompt, 16)
    core.run()
    counters = core.core.stats().counters
    assert counters.preemptions > 5
    assert counters.recompute_hit_tokens > 0, "the victims found their own blocks again"
    assert counters.prefix_hit_tokens == 0
    assert counters.prefix_lookup_tokens == sum(map(len, prompts))
    assert counters.recompute_hit_tokens <= counters.recompute_lookup_tokens
    assert counters.prompt_tokens_computed == sum(map(len, prompts))


def test_a28_a_shared_prefix_shorter_than_a_block_is_told_from_no_sharing() -> None:
    core = CoreDriver(32, 16, SchedulerConfig(match_inside_blocks=False))
    core.add(TEXT[:20], 1)
    core.run()
    core.add([*TEXT[:10], *range(700, 710)], 1)
    core.run()
    counters = core.core.stats().counters
    assert (counters.prefix_hit_tokens, counters.prefix_alignment_lost_tokens) == (0, 10)
    core.add(list(range(800, 820)), 1)
    core.run()
    assert core.core.stats().counters.prefix_alignment_lost_tokens == 10


def test_generated_blocks_are_hit_by_a_prompt_that_goes_on_from_them() -> None:
    core = CoreDriver(32, 4)
    first = core.add(TEXT[:6], 9)
    core.run()
    follow_up = core.add([*TEXT[:6], *core.outputs[first], 5], 3)
    core.run()
    assert core.cached[follow_up] == 14, "the last token was sampled and never computed"
    core.check_outputs()


def test_a_request_may_opt_out_and_the_whole_cache_may_be_off() -> None:
    core = CoreDriver(32, 4)
    core.add(TEXT[:12], 1, use_prefix_cache=False)
    core.run()
    assert core.core.stats().prefix_entries == 0
    off = CoreDriver(32, 4, SchedulerConfig(prefix_cache=False))
    for _ in range(2):
        off.add(TEXT[:12], 1)
        off.run()
    assert off.cached == {0: 0, 1: 0}
    assert off.core.stats().counters.prefix_lookup_tokens == 0


def test_hits_are_valid_within_one_call_only_and_count_as_consumed() -> None:
    """The only free blocks are those that the newcomer would hit: they are not promised twice."""
    core = CoreDriver(4, 4, SchedulerConfig(watermark_blocks=0))
    core.add(TEXT[:12], 1)
    core.run()
    running = core.add(list(range(300, 306)), 20 - 6 - 5)
    core.step()
    newcomer = core.add(TEXT[:13], 1)
    core.run()
    core.check_outputs()
    assert {core.reason(running), core.reason(newcomer)} == {FinishReason.LENGTH}


def test_the_pool_map_adds_up() -> None:
    core = CoreDriver(16, 4)
    core.add(TEXT[:10], 8)
    core.add([*TEXT[:8], 999], 8)
    core.fill()
    pool, stats = core.core.pool_map(), core.core.stats()
    assert np.bincount(pool.state, minlength=3).tolist() == [
        stats.blocks_free,
        stats.blocks_evictable,
        stats.blocks_active,
    ]
    assert stats.blocks_shared == 2
    assert stats.block_refs - stats.blocks_active == 2
    assert int(pool.fill[pool.ref_count > 0].sum()) == stats.slots_filled
    assert stats.slots_allocated == 4 * stats.blocks_active


def test_a_part_filled_block_written_twice_is_no_broken_invariant() -> None:
    """Behind more siblings than a look-up reads, an equal block is not seen and is made findable again;
    `run` audits every step.
    """
    core = CoreDriver(64, 8)
    endings = [*range(100, 101 + MAX_SIBLINGS), 100]
    for last in endings:
        core.add([*TEXT[:3], last], 1)
        core.run()
    assert core.flush() == len(endings), "each left its block"

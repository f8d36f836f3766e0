"""Several branches of one prompt: shared, copied on write, never written by two (kv-cache.md, sharing)."""

import itertools
from dataclasses import replace

import pytest

from scheduler_svc.core.plan import (
    FinishReason,
    Refusal,
    RefusalReason,
    SamplingParams,
    SchedulerConfig,
    branch_seed,
)
from tests.fakes.core_driver import CoreDriver

HOT = SamplingParams(temperature=1.0, seed=9)
PROMPT = list(range(100, 130))


def copies_of(core: CoreDriver) -> int:
    return sum(len(plan.copy_pairs) for plan in core.plans)


def test_branch_seeds_are_the_requests_own_then_hashes_of_it() -> None:
    assert branch_seed(7, 0) == 7
    assert len({branch_seed(7, branch) for branch in range(1000)}) == 1000
    assert branch_seed(7, 1) != branch_seed(8, 1)
    assert 0 <= branch_seed(2**64 - 1, 127) < 2**64


@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 4096])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 15, 16, 17])
@pytest.mark.parametrize("n", [2, 5])
def test_each_branch_equals_the_single_run_with_its_seed(block_size: int, length: int, n: int) -> None:
    """The driver compares every token with that run."""
    core = CoreDriver(-(-200 // block_size) + 8, block_size, SchedulerConfig(match_inside_blocks=False))
    first = core.add(PROMPT[:length], 9, n=n, sampling=HOT)
    core.run()
    core.check_outputs()
    assert all(len(core.outputs[first + branch]) == 9 for branch in range(n))
    assert len({tuple(core.outputs[first + branch]) for branch in range(n)}) == n
    counters = core.core.stats().counters
    assert counters.prompt_tokens_computed == length, "the prompt is computed once"
    partial = length % block_size != 0
    assert copies_of(core) == counters.copies_on_write == (n - 1 if partial else 0)
    assert counters.forks == n - 1
    saved = length // block_size
    assert counters.blocks_saved_by_forks == saved * (n - 1)
    assert [core.finished[first + branch].blocks_saved for branch in range(n)] == [0, *[saved] * (n - 1)]


def test_the_copies_of_a_step_are_one_array_of_its_plan() -> None:
    core = CoreDriver(32, 4)
    for _ in range(3):
        core.add(PROMPT[: 6 + _], 4, n=3, sampling=HOT)
    core.fill()
    assert [len(plan.copy_pairs) for plan in core.plans] == [0, 4], "two for 6 and 7 tokens, none for 8"


def test_a_block_that_is_copied_for_a_branch_carries_no_hash() -> None:
    """The copy is the branch's own: nobody finds it until it is full."""
    core = CoreDriver(32, 4)
    first = core.add(PROMPT[:6], 2, n=2, sampling=HOT)
    core.fill()
    tables = [core.core.sequence_blocks(first + branch) for branch in range(2)]
    assert tables[0][0] == tables[1][0]
    assert tables[0][0][1] == 2
    assert tables[0][1][0] != tables[1][1][0]
    assert [table[1][1:] for table in tables] == [(1, 3, ""), (1, 3, "")]
    core.run()


def test_a_copy_of_an_indexed_block_is_not_indexed_and_the_original_stays() -> None:
    core = CoreDriver(32, 4)
    core.add(PROMPT[:8], 1)
    core.run()
    again = core.add(PROMPT[:8], 3)
    core.fill()
    (_, refs, _, key), (block, own, _, copied_key) = core.core.sequence_blocks(again)[:2]
    assert (refs, own, core.cached[again]) == (1, 1, 7)
    assert key
    assert copied_key, "the copy is full again with the prompt's last token, and found as a duplicate"
    assert block != 1
    core.run()
    third = core.add(PROMPT[:8], 1)
    core.run()
    assert core.cached[third] == 7


@pytest.mark.parametrize("leaver", [0, 1, 2])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_n_greater_1_where_one_branch_ends_early(leaver: int, steps: int) -> None:
    core = CoreDriver(32, 4, SchedulerConfig(max_prefill_chunk=4))
    first = core.add(PROMPT[:10], 8, n=3, sampling=HOT)
    for _ in range(steps):
        core.schedule()
        if len(core.in_flight) == 2:
            core.answer()
    assert core.abort(first + leaver)
    assert not core.abort(first + leaver)
    core.run()
    core.check_outputs()
    reasons = [core.reason(first + branch) for branch in range(3)]
    assert reasons.pop(leaver) is FinishReason.ABORTED
    assert reasons == [FinishReason.LENGTH] * 2
    assert core.core.stats().blocks_active == 0


@pytest.mark.parametrize(("num_blocks", "block_size"), list(itertools.product([9, 11, 14], [2, 4])))
def test_a_group_survives_preemption(num_blocks: int, block_size: int) -> None:
    core = CoreDriver(num_blocks, block_size, SchedulerConfig(watermark_blocks=0))
    own = (num_blocks - 3) // 2 * block_size // 2
    first = core.add(PROMPT[: 2 * block_size + 1], own, n=2, sampling=HOT)
    others = [core.add([*range(200 + 9 * i, 205 + 9 * i)], block_size * 3) for i in range(3)]
    core.run()
    core.check_outputs()
    assert core.core.stats().counters.preemptions > 0
    for seq_id in (first, first + 1, *others):
        assert core.reason(seq_id) is FinishReason.LENGTH


def test_a_group_survives_a_lost_worker_at_every_step() -> None:
    for lost_after in range(12):
        core = CoreDriver(32, 4, SchedulerConfig(max_prefill_chunk=4))
        first = core.add(PROMPT[:10], 6, n=3, sampling=HOT)
        for _ in range(lost_after):
            if core.schedule() is None or len(core.in_flight) == 2:
                core.answer()
            if not core.core.has_work():
                break
        core.worker_lost()
        core.run()
        core.check_outputs()
        assert all(len(core.outputs[first + branch]) == 6 for branch in range(3))


def test_a_group_is_admitted_once_with_rows_for_all() -> None:
    core = CoreDriver(64, 4, SchedulerConfig(max_num_seqs=4))
    core.add([1, 2, 3], 20)
    core.add([4, 5, 6], 4)
    group = core.add(PROMPT[:5], 3, n=3, sampling=HOT)
    core.step()
    assert group not in core.cached, "two rows are free, three are needed"
    core.run()
    assert [group + branch in core.cached for branch in range(3)] == [True, False, False]
    core.check_outputs()


def test_rows_promised_to_branches_are_not_given_away() -> None:
    """The prompt takes several steps; short requests arrive all the while."""
    core = CoreDriver(64, 4, SchedulerConfig(max_num_seqs=4, max_prefill_chunk=4))
    group = core.add(PROMPT[:17], 3, n=3, sampling=HOT)
    for i in range(8):
        core.add([300 + i, 400], 6)
        core.schedule()
        if len(core.in_flight) == 2:
            core.answer()
    core.run()
    core.check_outputs()
    assert core.finished[group + 2].preemptions == 0
    assert core.core.stats().counters.forks == 2


def test_more_branches_than_rows_are_refused_with_the_numbers() -> None:
    core = CoreDriver(64, 4, SchedulerConfig(max_num_seqs=4))
    refusal = core.offer([1, 2, 3], max_tokens=2, n=5)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == (RefusalReason.EXCEEDS_ROWS, "n")
    assert (refusal.value, refusal.limit) == (5, 4)
    assert refusal.message == "n: 5 sequences, a step has at most 4"


def test_branches_that_never_fit_together_are_refused_with_the_numbers() -> None:
    core = CoreDriver(8, 4, SchedulerConfig(max_num_seqs=8))
    assert isinstance(core.offer(PROMPT[:8], max_tokens=5, n=6), int)  # 2 shared, 6 of 1
    refusal = core.offer(PROMPT[:8], max_tokens=6, n=6)  # 2 shared, 6 of 2
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field, refusal.value, refusal.limit) == (
        RefusalReason.EXCEEDS_KV_POOL, "n", 14, 8,
    )  # fmt: skip
    core.run()
    core.check_outputs()


def test_a_worker_with_fewer_rows_ends_every_branch_that_cannot_run_any_more() -> None:
    core = CoreDriver(64, 4)
    first = core.add(PROMPT[:6], 3, n=6, sampling=HOT)
    core.worker_lost()
    core.worker_ready(replace(core.capacity, max_batch_seqs=4))
    assert {core.reason(first + branch) for branch in range(6)} == {FinishReason.ERROR}


def test_ids_of_branches_count_as_live() -> None:
    core = CoreDriver(16, 4)
    core.add([1, 2, 3], 2, n=3)
    core._next_id = 2
    with pytest.raises(ValueError, match="seq_id 2 is live"):
        core.offer([1], max_tokens=1)


def test_branches_that_store_nothing_of_their_own_fit_where_the_prompt_fits() -> None:
    core = CoreDriver(2, 16)
    first = core.add(range(17), 1, n=4)
    core.run()
    assert [core.reason(first + branch) for branch in range(4)] == [FinishReason.LENGTH] * 4
    core.check_outputs()


def test_a_waiting_group_needs_less_once_branches_have_left() -> None:
    """Nothing is published and nothing ends meanwhile, so only their leaving can let it in."""
    core = CoreDriver(12, 4, SchedulerConfig(watermark_blocks=0))
    core.add(range(8), 36, use_prefix_cache=False)
    core.step()
    leader = core.add(range(50, 66), 2, n=7)
    core.step()
    assert leader not in core.cached
    for branch in range(6, 0, -1):
        core.abort(leader + branch)
    core.step()
    assert leader in core.cached

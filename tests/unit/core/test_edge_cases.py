"""Edge cases of the KV cache that no other file is about; docs/edge-cases.md lists all of them."""

import numpy as np
import pytest

from scheduler_svc.core.plan import FinishReason, SamplingParams, SchedulerConfig, SeqId, StepPlan
from tests.fakes.core_driver import CoreDriver

TEXT = list(range(1, 101))


def queries_of(core: CoreDriver, seq_id: int) -> list[tuple[int, int]]:
    """(first position, tokens) of each step of a sequence that never changes its row."""
    row = next(setup.row for plan in core.plans for setup in plan.setups if setup.seq_id == seq_id)
    begin = next(at for at, plan in enumerate(core.plans) if any(s.seq_id == seq_id for s in plan.setups))
    found = []
    for plan in core.plans[begin:]:
        for number, query, context in zip(plan.rows, plan.query_lens, plan.context_lens, strict=True):
            if number == row:
                found.append((int(context - query), int(query)))
    return found


def test_a_resumed_request_hits_its_own_prompt_and_generated_blocks() -> None:
    core = CoreDriver(10, 2, SchedulerConfig(watermark_blocks=0, depth=1))
    core.add(TEXT[:5], 9)
    victim = core.add(TEXT[20:25], 9)
    while not core.core.stats().counters.preemptions:
        core.step()
    known = 5 + len(core.outputs[victim])
    counters = core.core.stats().counters
    core.run()
    hit = core.core.stats().counters.recompute_hit_tokens - counters.recompute_hit_tokens
    assert known > 7, "it had generated a block"
    assert 0 < hit <= known - 1
    core.check_outputs()


def test_its_generated_blocks_are_among_those_that_a_resumed_request_hits() -> None:
    """With room enough nothing of it is evicted, so that all of its full blocks are found again."""
    core = CoreDriver(32, 2, SchedulerConfig(depth=1))
    seq_id = core.add(TEXT[:5], 12)
    for _ in range(7):
        core.step()
    core.worker_lost()
    core.worker_ready()
    core.run()
    assert core.reason(seq_id) is FinishReason.LENGTH
    other = core.add([*TEXT[:5], *core.outputs[seq_id], 7], 1)
    core.run()
    assert core.cached[other] >= 16, "8 full blocks of prompt and output"
    core.check_outputs()


@pytest.mark.parametrize("chunk", [3, 5, 7])
def test_a_hit_whose_length_is_no_multiple_of_the_chunk(chunk: int) -> None:
    core = CoreDriver(64, 4, SchedulerConfig(max_num_batched_tokens=64, max_prefill_chunk=chunk))
    core.add(TEXT[:17], 1)
    core.run()
    again = core.add([*TEXT[:16], *TEXT[50:71]], 3)
    core.run()
    assert core.cached[again] == 16
    steps = queries_of(core, again)
    assert steps[0] == (16, chunk), "it goes on where the hit ends"
    starts = [start for start, _ in steps]
    assert starts == sorted(set(starts))
    core.check_outputs()


@pytest.mark.parametrize("chunk", [1, 3, 4, 0])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_chunk_neither_samples_nor_advances_the_random_state(chunk: int, depth: int) -> None:
    """The random state counts output positions: the driver compares each token with the run alone."""
    core = CoreDriver(64, 4, SchedulerConfig(max_prefill_chunk=chunk, depth=depth))
    seq_id = core.add(TEXT[:14], 6, sampling=SamplingParams(temperature=1.0, seed=9))
    core.run()
    sampling = [plan for plan in core.plans if len(plan.sample_rows)]
    assert len(sampling) == 6
    assert first_context(sampling[0]) == 14
    assert core.outputs[seq_id] == core.expected(seq_id, 6)


def first_context(plan: StepPlan) -> int:
    return int(plan.context_lens[0])


def test_a_chunk_that_ends_inside_a_block_is_continued_in_it() -> None:
    core = CoreDriver(64, 4, SchedulerConfig(max_prefill_chunk=6))
    core.add(TEXT[:14], 1)
    core.run()
    first, second = core.plans[0].slot_mapping, core.plans[1].slot_mapping
    assert first[-1] // 4 == second[0] // 4
    assert second[0] == first[-1] + 1
    assert len(np.unique(np.concatenate([plan.slot_mapping for plan in core.plans]))) == 14


def test_a_decode_at_a_block_boundary_opens_a_block_when_it_is_due_and_not_before() -> None:
    core = CoreDriver(64, 4, SchedulerConfig(depth=1))
    seq_id = core.add(TEXT[:7], 6)
    held = []
    for _ in range(4):
        core.schedule()
        held.append(len(core.core.sequence_blocks(SeqId(seq_id))))
        core.answer()
    assert held == [2, 2, 3, 3], "7 tokens, then the 8th fills the second block, the 9th opens the third"


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_a_pool_of_so_few_blocks_serves_what_fits_and_ends_what_does_not(
    num_blocks: int, block_size: int
) -> None:
    core = CoreDriver(num_blocks, block_size)
    room = num_blocks * block_size
    fits = [core.add(TEXT[: max(1, room - 1)], 1) for _ in range(3)]
    grows = core.add(TEXT[50:51], None)
    core.run()
    assert {core.reason(seq_id) for seq_id in fits} == {FinishReason.LENGTH}
    assert core.reason(grows) is FinishReason.KV_POOL
    assert len(core.outputs[grows]) == room

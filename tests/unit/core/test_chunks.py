"""A12: chunked prefill at every boundary, and what contradictory limits do."""

import itertools

import numpy as np
import pytest

from scheduler_svc.core.plan import Capacity, Epoch, SchedulerConfig, SeqId
from scheduler_svc.core.scheduler import Scheduler
from tests.fakes.core_driver import CoreDriver

BLOCK_SIZES = (1, 2, 16)


def cases() -> list[tuple[int, int, int, bool]]:
    found = set()
    for size, with_decodes in itertools.product(BLOCK_SIZES, (False, True)):
        for prompt, budget in itertools.product(
            (1, size - 1, size, size + 1, 3 * size), (1, size - 1, size, size + 1, 500)
        ):
            if prompt and budget:
                found.add((size, prompt, budget, with_decodes))
    return sorted(found)


@pytest.mark.parametrize(("block_size", "prompt_len", "budget", "with_decodes"), cases())
def test_a12_one_sample_after_the_last_chunk_and_the_unchunked_positions(
    block_size: int, prompt_len: int, budget: int, with_decodes: bool
) -> None:
    core = CoreDriver(64, block_size, SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=4, depth=1))
    if with_decodes:
        core.add([900], 3 * prompt_len + 2)
        core.step()
    seq_id = core.add(list(range(prompt_len)), 2)
    positions: list[int] = []
    table: list[int] = []
    slots: list[int] = []
    while not core.outputs[seq_id]:
        plan = core.schedule()
        assert plan is not None
        assert len(plan.positions) <= budget
        if any(setup.seq_id == seq_id for setup in plan.setups) or positions:
            start, length, row = _part_of(plan, core, seq_id)
            positions += plan.positions[start : start + length].tolist()
            slots += plan.slot_mapping[start : start + length].tolist()
            table = [block for block, *_ in core.core.sequence_blocks(SeqId(seq_id))]
            assert len(table) == -(-len(positions) // block_size), "no block before it is due"
            assert (row in plan.sample_rows) == (len(positions) == prompt_len)
        core.answer()
    assert positions == list(range(prompt_len))
    assert slots == [table[p // block_size] * block_size + p % block_size for p in range(prompt_len)]
    core.run()
    core.check_outputs()


def _part_of(plan, core: CoreDriver, seq_id: int) -> tuple[int, int, int]:  # type: ignore[no-untyped-def]
    """(first token, tokens, row) of a sequence in a plan; (0, 0, -1) when it has no part in it."""
    row = next(setup.row for made in core.plans for setup in made.setups if setup.seq_id == seq_id)
    at = np.flatnonzero(plan.rows == row)
    if not len(at):
        return 0, 0, -1
    return int(plan.query_lens[: at[0]].sum()), int(plan.query_lens[at[0]]), row


@pytest.mark.parametrize("chunk", [1, 3, 4, 1000])
def test_a12_the_chunk_limit_holds_even_above_the_budget(chunk: int) -> None:
    core = CoreDriver(64, 4, SchedulerConfig(max_num_batched_tokens=10, max_prefill_chunk=chunk))
    core.add(list(range(40)), 2)
    core.add(list(range(50, 60)), 2)
    core.run()
    core.check_outputs()
    assert max(int(plan.query_lens.max()) for plan in core.plans) <= min(chunk, 10)


@pytest.mark.parametrize(
    "config",
    [
        SchedulerConfig(max_num_seqs=0),
        SchedulerConfig(max_num_batched_tokens=0),
        SchedulerConfig(max_prefill_chunk=-1),
        SchedulerConfig(watermark_blocks=-1),
        SchedulerConfig(depth=5),
        SchedulerConfig(depth=0),
    ],
)
def test_a12_limits_that_cannot_work_are_refused_at_start(config: SchedulerConfig) -> None:
    with pytest.raises(ValueError, match=r"must"):
        Scheduler(config)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (16, 0), (1 << 27, 16)])
def test_a_pool_without_blocks_or_beyond_int32_slots_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match=r"room|2\^31"):
        Scheduler(SchedulerConfig()).worker_ready(Capacity(Epoch(1), "m", num_blocks, block_size, 64, 8, 100))


def test_a12_more_rows_than_tokens_are_clamped_so_that_every_decode_has_its_token() -> None:
    core = CoreDriver(64, 4, SchedulerConfig(max_num_seqs=100, max_num_batched_tokens=8))
    for i in range(20):
        core.add([i], 10)
    core.run()
    core.check_outputs()
    assert max(len(plan.rows) for plan in core.plans) == 7

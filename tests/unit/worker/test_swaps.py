"""Plans that swap, checked and obeyed: bounds, order in a step, acknowledgements; sizes of the host tier."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.errors import PlanError, SettingsError
from gpu_worker.host_pool import num_host_blocks
from gpu_worker.kv_pool import GIB
from gpu_worker.rows import Limits, RowTable
from gpu_worker.wire import Plan
from tests.fixtures.hand_plans import HandPlanner, HandSequence, take
from tests.fixtures.tiny_runner import make_runner

LIMITS = Limits(
    num_blocks=16, block_size=4, max_batch_tokens=32, max_batch_seqs=4, max_model_len=24, vocab_size=100,
    num_host_blocks=8,
)  # fmt: skip


def pairs(*values: int) -> np.ndarray:
    return np.asarray(values, np.int32).reshape(-1, 2)


def empty_plan(planner: HandPlanner, **changes: object) -> Plan:
    return planner.plan([], **changes)


BAD = {
    "device block out of range": ("swap_out_pairs", {"swap_out_pairs": pairs(16, 0)}),
    "negative device block": ("swap_out_pairs", {"swap_out_pairs": pairs(-1, 0)}),
    "host block out of range": ("swap_out_pairs", {"swap_out_pairs": pairs(0, 8)}),
    "host block twice": ("swap_out_pairs", {"swap_out_pairs": pairs(0, 1, 2, 1)}),
    "target out of range": ("swap_in_pairs", {"swap_in_pairs": pairs(0, 16)}),
    "source out of range": ("swap_in_pairs", {"swap_in_pairs": pairs(8, 0)}),
    "target twice": ("swap_in_pairs", {"swap_in_pairs": pairs(0, 3, 1, 3)}),
    "never swapped out to": ("swap_in_pairs", {"swap_in_pairs": pairs(5, 3)}),
    "out and in at once": ("swap_in_pairs", {"swap_out_pairs": pairs(0, 1), "swap_in_pairs": pairs(1, 3)}),
    "target leaves": ("swap_in_pairs", {"swap_out_pairs": pairs(3, 2), "swap_in_pairs": pairs(1, 3)}),
    "target is copied": ("swap_in_pairs", {"copy_pairs": pairs(3, 4), "swap_in_pairs": pairs(1, 4)}),
}


@pytest.mark.parametrize(("field", "change"), BAD.values(), ids=list(BAD))
def test_a_bad_swap_is_refused_by_field(field: str, change: dict[str, object]) -> None:
    table, planner = RowTable(LIMITS), HandPlanner(LIMITS.num_blocks, LIMITS.block_size)
    table.apply(empty_plan(planner, swap_out_pairs=pairs(0, 0, 1, 1)))
    with pytest.raises(PlanError) as caught:
        table.apply(empty_plan(planner, **change))
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["swap_out_pairs", "swap_in_pairs"])
def test_a_worker_without_host_blocks_refuses_swaps(field: str) -> None:
    table = RowTable(replace(LIMITS, num_host_blocks=0))
    with pytest.raises(PlanError, match=f"{field}: this worker has no host blocks"):
        table.apply(empty_plan(HandPlanner(16, 4), **{field: pairs(0, 0)}))


def test_a_new_session_finds_nothing_on_the_host() -> None:
    table, planner = RowTable(LIMITS), HandPlanner(16, 4)
    table.apply(empty_plan(planner, swap_out_pairs=pairs(0, 0)))
    table.clear()
    with pytest.raises(PlanError, match="never swapped out to"):
        table.apply(empty_plan(planner, swap_in_pairs=pairs(0, 3)))


def test_a30_a_row_swapped_out_and_in_elsewhere_goes_on_with_the_same_tokens(tiny_llama: Path) -> None:
    prompt = [5, 9, 200, 31, 7, 77, 12]
    calm, swapped = HandSequence(0, list(prompt)), HandSequence(0, list(prompt))
    runner = make_runner(tiny_llama, num_blocks=16, num_host_blocks=8)
    planner = HandPlanner(16, 4)
    for sequence in (calm, swapped):
        count = len(prompt)
        for _ in range(6):
            plan = planner.plan([(sequence, count)])
            take([sequence], plan, runner.launch(plan).wait())
            count = 1
            if sequence is swapped and len(sequence.outputs) == 3:
                _swap_out_and_in(runner, planner, sequence)
        planner.release(sequence)
        runner.launch(empty_plan(planner)).wait()
    assert swapped.outputs == calm.outputs


def _swap_out_and_in(runner: object, planner: HandPlanner, sequence: HandSequence) -> None:
    """To host blocks in another order, rubbish over the old blocks, and back into fresh ones."""
    assert hasattr(runner, "pool")
    old = list(sequence.table)
    host = [5, 2, 7][: len(old)]
    planner.release(sequence)
    out = pairs(*(block for pair in zip(old, host, strict=True) for block in pair))
    outcome = runner.launch(empty_plan(planner, swap_out_pairs=out)).wait()  # type: ignore[attr-defined]
    assert outcome.transfers.step_ids == (planner.step_id,)
    runner.pool.tensor[:, :, old] = 1e4
    fresh = [block for block in range(16) if block not in old][: len(old)]
    back = pairs(*(block for pair in zip(host, fresh, strict=True) for block in pair))
    runner.launch(empty_plan(planner, swap_in_pairs=back)).wait()  # type: ignore[attr-defined]
    sequence.table, sequence.is_set_up = fresh, False
    planner.take_out(fresh)


def test_every_byte_of_every_block_survives_and_no_other_is_touched(tiny_llama: Path) -> None:
    runner = make_runner(tiny_llama, num_blocks=16, num_host_blocks=8)
    pool, planner = runner.pool.tensor, HandPlanner(16, 4)
    pool.copy_(_pattern(pool.shape))
    before = pool.clone()
    runner.launch(empty_plan(planner, swap_out_pairs=pairs(3, 7, 9, 0, 4, 1))).wait()
    runner.launch(empty_plan(planner, swap_in_pairs=pairs(7, 12, 0, 3, 1, 15))).wait()
    expected = before.clone()
    expected[:, :, [12, 3, 15]] = before[:, :, [3, 9, 4]]
    assert pool.equal(expected)


def _pattern(shape: tuple[int, ...]) -> object:
    import torch

    return torch.arange(int(np.prod(shape)), dtype=torch.float32).view(shape)


def test_swap_outs_read_before_the_plan_zeroes_and_swap_ins_come_after(tiny_llama: Path) -> None:
    runner = make_runner(tiny_llama, num_blocks=16, num_host_blocks=8)
    pool, planner = runner.pool.tensor, HandPlanner(16, 4)
    pool[:, :, 3], pool[:, :, 4] = 3.0, 4.0
    runner.launch(empty_plan(planner, swap_out_pairs=pairs(3, 0), zero_blocks=np.array([3], np.int32))).wait()
    assert not pool[:, :, 3].any()
    runner.launch(empty_plan(planner, swap_in_pairs=pairs(0, 4), zero_blocks=np.array([4], np.int32))).wait()
    assert bool((pool[:, :, 4] == 3.0).all())


def test_a_transfer_is_acknowledged_once_and_never_before_its_step(tiny_llama: Path) -> None:
    runner = make_runner(tiny_llama, num_blocks=16, num_host_blocks=8)
    planner = HandPlanner(16, 4)
    first = runner.launch(empty_plan(planner))
    second = runner.launch(empty_plan(planner, swap_out_pairs=pairs(0, 0)))
    third = runner.launch(empty_plan(planner))
    assert [step.wait().transfers.step_ids for step in (first, second, third)] == [(), (2,), ()]


def test_a_reset_forgets_transfers_of_the_old_session(tiny_llama: Path) -> None:
    runner = make_runner(tiny_llama, num_blocks=16, num_host_blocks=8)
    planner = HandPlanner(16, 4)
    runner.launch(empty_plan(planner, swap_out_pairs=pairs(0, 0)))
    runner.reset()
    assert runner.launch(empty_plan(planner)).wait().transfers.step_ids == ()


def test_the_host_tier_is_as_large_as_asked_for() -> None:
    assert num_host_blocks(2.0, GIB // 4, 10 * GIB) == 8
    assert num_host_blocks(0.0, GIB, 0) == 0


@pytest.mark.parametrize(
    ("swap_space", "block", "free", "held", "numbers"),
    [
        (20.0, GIB, 10 * GIB, 0, ("10 GiB of host memory are free", "at most 10 GiB", "--swap-space")),
        (8.0, GIB, 10 * GIB, 5 * GIB, ("5 GiB of them", "at most 5 GiB")),
        (math.inf, GIB, 10 * GIB, 0, ("at most 10 GiB", "--swap-space")),
        (1e-12, GIB, 10 * GIB, 0, ("at least 1 GiB, one block", "--swap-space")),
        (0.5, GIB, 10 * GIB, 0, ("at least 1 GiB, one block", "--swap-space")),
    ],
)
def test_a_host_tier_larger_than_memory_or_smaller_than_a_block_is_refused_with_the_numbers(
    swap_space: float, block: int, free: int, held: int, numbers: tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError) as caught:
        num_host_blocks(swap_space, block, free, held)
    for number in numbers:
        assert number in str(caught.value)

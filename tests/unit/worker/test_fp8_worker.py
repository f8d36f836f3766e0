"""A worker with an 8-bit KV pool, on a CPU: what it announces, how much it holds, and that blocks keep their
bytes through chunks, hits, forks, copies and swaps.

Owns the small crowds; knows no service. Invariant: the torch kernels run, and every pool is e4m3.
"""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.announcement import fingerprint
from gpu_worker.config import read_settings
from gpu_worker.errors import SettingsError
from gpu_worker.kv_pool import GIB, KvPool, MemoryReading, PoolRequest, bytes_per_block, size_pool
from gpu_worker.loading import Examined, examine, load
from gpu_worker.model_runner import ModelRunner
from gpu_worker.models.registry import parse_config
from paged_kernels import fp8_pool
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run
from tests.fixtures.tiny_model import TinyShape, tiny_config
from tests.fixtures.tiny_runner import make_runner

FP8 = ("--kv-cache-dtype", "fp8_e4m3")
SMALL = ("--num-blocks", "32", "--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--threads", "1")


def examined(model: Path, *flags: str) -> Examined:
    return examine(read_settings(["--model", str(model), "--device", "cpu", *SMALL, *flags]))


def test_it_says_what_its_pool_is(tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        capacity = load(examined(tiny_llama, *FP8, "--dtype", "bfloat16")).capacity
    assert (capacity.kv_dtype, capacity.kv_layout) == ("fp8_e4m3", fp8_pool.LAYOUT)
    assert capacity.bytes_per_block == 2 * 2 * (16 * 2 * (16 + 1))
    assert {choice.backend for choice in capacity.kernels} == {"torch"}
    assert "an fp8_e4m3 pool on a CPU is the torch kernels' own" in capacity.kernels[0].why
    assert "falling back" not in caplog.text
    assert "KV pool fp8_e4m3: 32 blocks of 2176 bytes" in caplog.text


def test_its_default_dtype_on_a_cpu_is_that_of_the_torch_kernels(tiny_llama: Path) -> None:
    assert examined(tiny_llama, *FP8).dtype == torch.float32


def test_its_fingerprint_is_its_own(tiny_llama: Path) -> None:
    """A cache keyed by the fingerprint never takes KV of another format for its own."""
    assert fingerprint(examined(tiny_llama, *FP8, "--dtype", "bfloat16")) != fingerprint(
        examined(tiny_llama, "--dtype", "bfloat16")
    )


@pytest.mark.parametrize(
    "flags", [("--kernel-backend", "cpu"), ("--quantize", "int8"), ("--quantize", "int4")]
)
def test_what_has_no_8_bit_pool_is_refused_by_name(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit):
        examined(tiny_llama, *FP8, *flags)
    words = f"{' '.join(flags)}: goes with --kv-cache-dtype auto, not with --kv-cache-dtype fp8_e4m3"
    assert words in capsys.readouterr().err


def test_flash_attn_has_no_8_bit_pool(tiny_llama: Path) -> None:
    with pytest.raises(SettingsError, match="--attention-backend: cannot run: "):
        examined(tiny_llama, *FP8, "--attention-backend", "flash")


def test_attention_by_torch_is_there_by_name(tiny_llama: Path) -> None:
    found = examined(tiny_llama, *FP8, "--attention-backend", "torch")
    assert found.pool_dtype == fp8_pool.DTYPE
    assert {choice.backend for choice in found.kernels.choices} == {"torch"}


def test_an_unknown_format_is_refused(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        examined(tiny_llama, "--kv-cache-dtype", "fp8_e5m2")
    assert "--kv-cache-dtype fp8_e5m2: must be one of auto, fp8_e4m3\n" in capsys.readouterr().err


@pytest.mark.parametrize(("head_dim", "times"), [(64, 1.96), (80, 1.97), (128, 1.98), (256, 1.99)])
def test_the_same_memory_holds_twice_the_blocks(head_dim: int, times: float) -> None:
    config = parse_config(tiny_config(TinyShape(layers=28, heads=16, kv_heads=8, head_dim=head_dim)))
    reading = MemoryReading(total=80 * GIB, free=70 * GIB)

    def held(dtype: torch.dtype) -> int:
        size = bytes_per_block(config, 16, dtype)
        return size_pool(reading, PoolRequest(size, 16, 0.9, 8 * GIB, GIB)).num_blocks

    assert times <= held(fp8_pool.DTYPE) / held(torch.bfloat16) < 2


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_the_pool_takes_the_bytes_that_were_counted(block_size: int) -> None:
    config = parse_config(tiny_config(TinyShape(layers=3, kv_heads=2, head_dim=16)))
    pool = KvPool(config, 5, block_size, fp8_pool.DTYPE, torch.device("cpu"))
    assert pool.tensor.untyped_storage().nbytes() == 6 * bytes_per_block(config, block_size, fp8_pool.DTYPE)
    assert pool.keys(1).shape == pool.values(2).shape == (6, block_size, 2, 16)
    assert not pool.tensor.any()
    for view in (pool.keys(1), pool.values(2)):
        fp8_pool.write_slots(view, torch.tensor([6 * block_size - 1]), torch.ones(1, 2, 16))
    assert [bool(layer.any()) for half in pool.tensor for layer in half] == [
        False,
        True,
        False,
        False,
        False,
        True,
    ]
    assert not pool.tensor[:, :, :5].any()


def crowd() -> list[HandSequence]:
    return [
        HandSequence(row, [(3 + 7 * row + 5 * at) % 380 for at in range(1 + 9 * row)]) for row in range(4)
    ]


def outputs(runner: ModelRunner, sequences: list[HandSequence], chunk: int = 10**6) -> list[list[int]]:
    run(runner, HandPlanner(runner.pool.num_blocks, runner.pool.block_size), sequences, 8, chunk)
    return [sequence.outputs for sequence in sequences]


def content(runner: ModelRunner, sequence: HandSequence) -> Tensor:
    """Every byte of a sequence's whole blocks, layer by layer of K and V."""
    whole = sequence.computed // runner.pool.block_size
    return runner.pool.tensor[:, :, sequence.table[:whole]].clone()


def test_tokens_and_bytes_do_not_depend_on_chunks_batches_or_blocks(tiny_llama: Path) -> None:
    """Cached is recomputed: the same tokens alone and together, at once and in pieces, leave the same first
    layer bit for bit, and sample the same.
    """
    together, chunked = make_runner(tiny_llama, fp8=True), make_runner(tiny_llama, fp8=True)
    first, second = crowd(), crowd()
    expected = outputs(together, first)
    assert outputs(chunked, second, chunk=3) == expected
    for one, other in zip(first, second, strict=True):
        assert torch.equal(content(together, one)[:, 0], content(chunked, other)[:, 0])
    for row, sequence in enumerate(crowd()):
        alone = make_runner(tiny_llama, fp8=True)
        assert outputs(alone, [sequence]) == [expected[row]]


def test_a_hit_and_a_copied_block_are_the_recomputed_ones(tiny_llama: Path) -> None:
    runner = make_runner(tiny_llama, fp8=True)
    planner = HandPlanner(64, 4)
    donor = HandSequence(0, list(range(5, 25)))
    run(runner, planner, [donor], 3)
    prompt = [*donor.tokens[:18], 7, 9]
    hit, copied = HandSequence(1, list(prompt)), HandSequence(2, list(prompt))
    planner.share(donor, hit, 16)
    run(runner, planner, [hit], 8)
    source, target = donor.table[3], 60
    planner.take_out([target])
    copied.table, copied.computed = [*donor.table[:3], target], 14
    pairs = np.array([[source, target]], np.int32)
    plan = planner.plan([(copied, 1)], copy_pairs=pairs)
    runner.launch(plan).wait()
    assert torch.equal(runner.pool.tensor[:, :, target, :], runner.pool.tensor[:, :, source, :])
    run(runner, planner, [copied], 8)
    alone = HandSequence(0, list(prompt))
    run(make_runner(tiny_llama, fp8=True), HandPlanner(64, 4), [alone], 8)
    assert hit.outputs == copied.outputs == alone.outputs


def test_a_swap_out_and_in_again_keeps_every_byte(tiny_llama: Path) -> None:
    runner = make_runner(tiny_llama, fp8=True, num_host_blocks=16)
    assert runner.host is not None
    sequence = crowd()[3]
    outputs(runner, [sequence])
    before = runner.pool.tensor[:, :, sequence.table].clone()
    host = np.arange(len(sequence.table), dtype=np.int32)
    device = np.array(sequence.table, np.int32)
    runner.host.swap_out(1, np.stack((device, host), 1))
    runner.pool.tensor.fill_(255)
    moved = (device + 1) % 64
    runner.host.swap_in(np.stack((host, moved), 1))
    assert torch.equal(runner.pool.tensor[:, :, moved.tolist()], before)


def test_a_row_with_nan_in_its_values_fails_and_no_other(tiny_llama: Path) -> None:
    runner = make_runner(tiny_llama, fp8=True)
    planner, (broken, whole) = HandPlanner(64, 4), crowd()[2:]
    plan = planner.plan([(one, len(one.tokens)) for one in (broken, whole)])
    runner.launch(plan).wait()
    slot = broken.table[0] * 4
    fp8_pool.write_slots(runner.pool.values(1), torch.tensor([slot]), torch.full((1, 2, 16), torch.nan))
    for sequence in (broken, whole):
        sequence.tokens.append(5)
    outcome = runner.launch(planner.plan([(broken, 1), (whole, 1)])).wait()
    assert outcome.failed_rows == (broken.row,)


def test_num_blocks_by_name_is_held_against_the_smaller_blocks() -> None:
    config = parse_config(tiny_config(TinyShape(layers=28, heads=16, kv_heads=8, head_dim=128)))
    reading = MemoryReading(total=8 * GIB, free=6 * GIB)
    request = PoolRequest(bytes_per_block(config, 16, fp8_pool.DTYPE), 16, 0.9, GIB, GIB)
    fits = size_pool(reading, request).num_blocks
    assert size_pool(reading, replace(request, num_blocks=fits)).num_blocks == fits

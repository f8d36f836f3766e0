"""The 8-bit pool on a CUDA device: kernels against the torch ones, whole steps in graphs and without, swaps.

Owns the verdicts there; knows no service. Invariant: unused slots have every bit set, which is NaN.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_worker.config import read_settings
from gpu_worker.loading import examine, load
from gpu_worker.model_runner import ModelRunner
from paged_kernels import dispatch, fp8_pool, torch_impl
from paged_kernels.dispatch import Kernels
from paged_kernels.testing import GPU_HEAD_DIMS, Batch, Shape, gpu_fp8_cases, judge, make_batch
from tests.fixtures.graph_cases import SHAPES, all_outputs, tiny_folder
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import make_runner
from tests.gpu.compiled_first import compile_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
DRAWN = (120, 196)
"""Shapes, and the seed that draws them."""
SIZES = {"max_batch_tokens": 40, "max_batch_seqs": 6, "max_model_len": 64}


def drawn(head_dim: int | None) -> Iterator[tuple[Kernels, Batch]]:
    for shape, dtype, seed in gpu_fp8_cases(*DRAWN):
        if (shape.head_dim if shape.head_dim in GPU_HEAD_DIMS else None) != head_dim:
            continue
        size = shape.block_size
        kernels = dispatch.select("triton", "cuda", dtype, shape.head_dim, size, pool_dtype=fp8_pool.DTYPE)
        yield kernels, make_batch(shape, dtype, "cuda", seed, fp8=True)


@pytest.mark.parametrize("head_dim", [*GPU_HEAD_DIMS, None])
def test_drawn_shapes(head_dim: int | None) -> None:
    """Of one head_dim, None: of odd ones. Each of them compiles kernels of its own."""
    compile_for(drawn(head_dim))
    wrong = [
        f"{batch.query.dtype} {batch.shape}: {text}"
        for kernels, batch in drawn(head_dim)
        for text in judge(kernels, batch).wrong
    ]
    assert not wrong


def test_extreme_values_leave_the_bytes_that_torch_leaves() -> None:
    """Zeros, subnormals, the greatest numbers, ties, NaN and infinity, in every 16-bit and 32-bit dtype."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        greatest = torch.finfo(dtype).max
        ends = [0.0, -0.0, 1e-45, 1e-7, greatest, -greatest, math.nan, math.inf, -math.inf, 448.0, 449.0, 1.0]
        ties = [sign * (2 * n + 1) * 2.0**-e for sign in (1, -1) for n in range(16) for e in range(4, 14)]
        values = torch.tensor((ends + ties) * 8)[: 41 * 2 * 32].view(-1, 2, 32)
        key = torch.cat((values, values.flip(0) * 448)).to(dtype).cuda()
        tokens = len(key)
        whole = torch.full(
            (2, 2, tokens, fp8_pool.block_bytes(3, 2, 32)), 255, dtype=torch.uint8, device="cuda"
        )
        slots = torch.randperm(3 * tokens, device="cuda")[:tokens].int()
        kernels = dispatch.select("triton", "cuda", dtype, 32, 3, fp8_pool.DTYPE)
        for half, impl in zip(whole, (kernels, torch_impl), strict=True):
            pools = [fp8_pool.values_of(layer, 3, 2, 32) for layer in half]
            impl.store_kvcache(key, -key, *pools, slots)
        assert torch.equal(whole[0], whole[1])


def test_copy_and_zero_blocks_take_the_exponents_along() -> None:
    kernels = dispatch.select("triton", "cuda", torch.bfloat16, 80, 100, fp8_pool.DTYPE)
    size = fp8_pool.block_bytes(100, 2, 80)
    pool = torch.randint(0, 256, (2, 3, 40, size), device="cuda", dtype=torch.uint8)
    expected = pool.clone()
    order = torch.randperm(40, device="cuda")
    pairs, blocks = order[:20].view(10, 2).int(), order[20:30]
    for target, impl in ((pool, kernels), (expected, torch_impl)):
        impl.copy_blocks(target, pairs)
        impl.zero_blocks(target, blocks)
    assert pool.equal(expected)


def test_nothing_waits_and_a_replay_is_the_call() -> None:
    kernels = dispatch.select("auto", "cuda", torch.bfloat16, 128, 16, fp8_pool.DTYPE)
    assert {choice.backend for choice in kernels.choices} == {"triton"}
    shape = Shape(16, 2, 3, 128, ((1, 900), (40, 50), (1, 3)))
    batch = make_batch(shape, torch.bfloat16, "cuda", 0, fp8=True)
    assert not judge(kernels, batch).wrong
    expected = kernels.paged_attention(*batch.attention_args)
    out, graph = torch.full_like(batch.query, math.nan), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.store_kvcache(*batch.store_args)
        kernels.paged_attention(*batch.attention_args, out)
    graph.replay()
    assert out.equal(expected)


def test_queries_beyond_float16_are_attended_as_in_bfloat16() -> None:
    """Queries of 1e-30 and 1e30 times keys of the inverse size: float16 holds neither."""
    kernels = dispatch.select("triton", "cuda", torch.bfloat16, 128, 16, fp8_pool.DTYPE)
    for size in (1e-30, 1e30):
        batch = make_batch(Shape(16, 2, 4, 128, ((1, 400), (30, 70))), torch.bfloat16, "cuda", 3, fp8=True)
        batch.query.mul_(size)
        batch.key.div_(size)
        for pool in (batch.k_pool, batch.v_pool):
            used = fp8_pool.exponents_of(pool) != 255
            keys = torch.randn(pool.shape, device="cuda") / (size if pool is batch.k_pool else 1)
            slots = used.transpose(1, 2)[..., 0].flatten().nonzero().flatten()
            fp8_pool.write_slots(pool, slots, keys.flatten(0, 1)[slots])
        assert not judge(kernels, batch).wrong


def test_offsets_past_two_to_the_31_bytes() -> None:
    block, heads, dim = 4096, 8, 128
    blocks = 2**31 // fp8_pool.block_bytes(block, heads, dim) + 2
    layer = torch.zeros((blocks, fp8_pool.block_bytes(block, heads, dim)), dtype=torch.uint8, device="cuda")
    pool = fp8_pool.values_of(layer, block, heads, dim)
    kernels = dispatch.select("triton", "cuda", torch.bfloat16, dim, block, fp8_pool.DTYPE)
    key = torch.randn((3, heads, dim), device="cuda").bfloat16()
    slots = torch.arange(3, device="cuda", dtype=torch.int32) + (blocks - 1) * block
    kernels.store_kvcache(key, key, pool, pool, slots)
    table = torch.tensor([[blocks - 1]], dtype=torch.int32, device="cuda")
    lens = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
    context = torch.tensor([3], dtype=torch.int32, device="cuda")
    args = (key[:1], pool, pool, table, lens, context, 0.1, 1, 3)
    stored = fp8_pool.read_slots(pool, slots.long(), torch.float32)
    assert stored.equal(fp8_pool.dequantise(*fp8_pool.quantise(key), torch.float32))
    expected = torch_impl.paged_attention(*args)
    assert torch.allclose(kernels.paged_attention(*args), expected, rtol=2e-2, atol=2e-2)


def runner(folder: Path, dtype: str, graphs: str) -> ModelRunner:
    made = make_runner(folder, dtype, on="cuda", fp8=True, **SIZES)
    assert made.fused is not None
    if graphs != "off":
        made.capture_graphs(captured=graphs == "on")
    return made


@pytest.mark.parametrize("name", SHAPES)
def test_steps_give_the_cpu_s_tokens_in_float32_with_graphs_and_without(tmp_path: Path, name: str) -> None:
    """Chunks, decodes, hits, copies of blocks, steps in flight: the torch kernels on a CPU are the oracle."""
    folder = tiny_folder(tmp_path, name)
    expected = all_outputs(make_runner(folder, fp8=True, backend="torch", **SIZES), 5)
    assert all_outputs(runner(folder, "float32", "off"), 5) == expected
    assert all_outputs(runner(folder, "float32", "on"), 5) == expected


@pytest.mark.parametrize("name", SHAPES)
def test_a_replay_is_the_eager_pass_on_the_same_padded_step_in_bfloat16(tmp_path: Path, name: str) -> None:
    folder = tiny_folder(tmp_path, name)
    eager = all_outputs(runner(folder, "bfloat16", "padded, eager"), 5)
    assert all_outputs(runner(folder, "bfloat16", "on"), 5) == eager


def test_a_swap_out_and_in_again_keeps_every_byte(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, TinyShape("llama", seed=21))
    made = make_runner(folder, on="cuda", fp8=True, num_host_blocks=32)
    assert made.host is not None
    sequence = HandSequence(0, list(range(5, 55)))
    run(made, HandPlanner(64, 4), [sequence], 4)
    device = np.array(sequence.table, np.int32)
    before = made.pool.tensor[:, :, device.tolist()].clone()
    host = np.random.default_rng(0).permutation(32)[: len(device)].astype(np.int32)
    made.host.swap_out(1, np.stack((device, host), 1))
    assert made.host.acknowledge(1, wait=True).step_ids == (1,)
    made.pool.tensor.fill_(255)
    moved = (device + 7) % 64
    made.host.swap_in(np.stack((host, moved), 1))
    assert torch.equal(made.pool.tensor[:, :, moved.tolist()], before)


def test_a_loaded_worker_holds_twice_the_blocks(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, TinyShape("qwen3", hidden=512, heads=8, kv_heads=8, head_dim=128))
    flags = ["--model", str(model), "--device", "cuda", "--dtype", "bfloat16", "--max-num-seqs", "16"]
    flags += ["--gpu-memory-utilization", "0.2", "--max-num-batched-tokens", "64", "--swap-space", "0"]
    held = {}
    for kind in ("auto", "fp8_e4m3"):
        loaded = load(examine(read_settings([*flags, "--kv-cache-dtype", kind])))
        assert loaded.capacity.kv_dtype == {"auto": "bfloat16"}.get(kind, kind)
        held[kind] = loaded.capacity.num_blocks
        del loaded
    assert 1.95 <= held["fp8_e4m3"] / held["auto"] <= 2.0

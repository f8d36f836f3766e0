"""The Triton kernels against the torch ones on a CUDA device.

Owns the verdicts on drawn shapes; knows no service. Invariant: outputs are poisoned, unused slots are NaN.
"""

import math
from collections.abc import Iterator

import pytest
import torch

from paged_kernels import dispatch, torch_impl
from paged_kernels.dispatch import Kernels
from paged_kernels.testing import GPU_HEAD_DIMS, Batch, Shape, gpu_cases, judge, make_batch
from tests.gpu.compiled_first import compile_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
DRAWN = (200, 2)
"""Shapes, and the seed that draws them."""


def drawn(head_dim: int | None) -> Iterator[tuple[Kernels, Batch]]:
    for shape, dtype, seed in gpu_cases(*DRAWN):
        if (shape.head_dim if shape.head_dim in GPU_HEAD_DIMS else None) != head_dim:
            continue
        kernels = dispatch.select("triton", "cuda", dtype, shape.head_dim, shape.block_size)
        yield kernels, make_batch(shape, dtype, "cuda", seed)


@pytest.mark.parametrize("head_dim", [*GPU_HEAD_DIMS, None])
def test_200_drawn_shapes(head_dim: int | None) -> None:
    """Of one head_dim, None: of odd ones. Each of them compiles kernels of its own."""
    compile_for(drawn(head_dim))
    wrong = [
        f"{batch.query.dtype} {batch.shape}: {text}"
        for kernels, batch in drawn(head_dim)
        for text in judge(kernels, batch).wrong
    ]
    assert not wrong


def test_auto_chooses_triton_and_waits_for_nothing() -> None:
    """No call synchronises: all of a step can be captured in a CUDA graph and replayed."""
    kernels = dispatch.select("auto", "cuda", torch.bfloat16, 64, 16)
    assert {choice.backend for choice in kernels.choices} == {"triton"}
    batch = make_batch(Shape(16, 2, 3, 64, ((1, 900), (40, 50), (1, 3))), torch.bfloat16, "cuda", 0)
    verdict = judge(kernels, batch)
    assert not verdict.wrong
    expected = kernels.paged_attention(*batch.attention_args)
    out, graph = torch.full_like(batch.query, math.nan), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.store_kvcache(*batch.store_args)
        kernels.paged_attention(*batch.attention_args, out)
    graph.replay()
    assert out.equal(expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_copy_and_zero_blocks(dtype: torch.dtype) -> None:
    kernels = dispatch.select("triton", "cuda", dtype, 80, 100)
    pool = torch.randn((2, 3, 40, 100, 2, 80), device="cuda").to(dtype)
    expected = pool.clone()
    order = torch.randperm(40, device="cuda")
    pairs, blocks = order[:20].view(10, 2).int(), order[20:30]
    for target, impl in ((pool, kernels), (expected, torch_impl)):
        impl.copy_blocks(target, pairs)
        impl.zero_blocks(target, blocks)
    assert pool.equal(expected)


def test_offsets_past_two_to_the_31_elements() -> None:
    """A pool of 5 GB: the last block lies beyond 2^31 elements."""
    block, heads, dim = 4096, 8, 128
    blocks = 2**31 // (block * heads * dim) + 2
    pool = torch.zeros((blocks, block, heads, dim), dtype=torch.bfloat16, device="cuda")
    kernels = dispatch.select("triton", "cuda", torch.bfloat16, dim, block)
    key = torch.randn((3, heads, dim), device="cuda").bfloat16()
    slots = torch.arange(3, device="cuda", dtype=torch.int32) + (blocks - 1) * block
    kernels.store_kvcache(key, key, pool, pool, slots)
    table = torch.tensor([[blocks - 1]], dtype=torch.int32, device="cuda")
    lens = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
    context = torch.tensor([3], dtype=torch.int32, device="cuda")
    args = (key[:1], pool, pool, table, lens, context, 0.1, 1, 3)
    expected = torch_impl.paged_attention(*args)
    assert pool[-1, :3].equal(key)
    assert torch.allclose(kernels.paged_attention(*args), expected, rtol=2e-2, atol=2e-2)

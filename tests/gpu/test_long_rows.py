"""Attention of long rows by groups of warps, on a device of compute capability 9.0.

Owns its verdicts on drawn rows; knows no service. Invariant: outputs are poisoned, unused slots are NaN, and
every test sees that this kernel was launched.
"""

import math
import random
from typing import Any

import pytest
import torch

from paged_kernels import dispatch
from paged_kernels.testing import Batch, Shape, judge, make_batch
from paged_kernels.triton_impl import hopper_attention
from tests.gpu.compiled_first import compile_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a CUDA device of compute capability 9.0",
    ),
    pytest.mark.timeout(300),
]
SIZES = [
    *((torch.bfloat16, 16, 128, 2), (torch.bfloat16, 16, 128, 4), (torch.bfloat16, 8, 64, 1)),
    *((torch.bfloat16, 32, 64, 7), (torch.float16, 64, 128, 3), (torch.bfloat16, 128, 128, 16)),
]
"""dtype, block size, head_dim, query heads for each KV head."""
KV_HEADS = 8
Rows = tuple[tuple[int, int], ...]
FIXED: list[Rows] = [
    ((2048, 2048),),
    ((1500, 4001),),
    ((300, 300), (1, 700), (77, 1000), (0, 0), (555, 555), (1, 1)),
    ((20, 20),) * 40,
    ((0, 0), (64, 64), (65, 128), (128, 129), (127, 127), (0, 0), *((1, 5),) * 20),
]
"""(new tokens, context) of each row: a prompt, a chunk of one, mixtures, many short ones, edges of tiles."""


def drawn_rows(seed: int, block_size: int) -> Rows:
    """Enough rows to fill the device without splits, biased to block boundaries."""
    rng, rows = random.Random(seed), []
    for _ in range(24):
        context = rng.randint(1, rng.choice((40, 300, 1500)))
        if rng.random() < 0.4:
            context = max(1, rng.randint(1, 9) * block_size + rng.choice((-1, 0, 1)))
        kind = rng.random()
        rows.append((1 if kind < 0.2 else context if kind < 0.5 else rng.randint(0, context), context))
    return (*rows, (200, 200))


def batches(dtype: torch.dtype, block_size: int, head_dim: int, group: int) -> list[Batch]:
    rows = [*FIXED, *(drawn_rows(seed, block_size) for seed in range(8))]
    shapes = [Shape(block_size, KV_HEADS, group, head_dim, each) for each in rows]
    return [make_batch(shape, dtype, "cuda", seed) for seed, shape in enumerate(shapes)]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for every launch of the kernel under test."""
    seen: list[Any] = []
    attend = hopper_attention.attend

    def counted(*args: Any) -> None:
        seen.append(args)
        attend(*args)

    monkeypatch.setattr(hopper_attention, "attend", counted)
    return seen


@pytest.mark.parametrize(("dtype", "block_size", "head_dim", "group"), SIZES)
def test_drawn_rows_give_the_reference(
    dtype: torch.dtype, block_size: int, head_dim: int, group: int, launches: list[Any]
) -> None:
    kernels = dispatch.select("triton", "cuda", dtype, head_dim, block_size)
    drawn = batches(dtype, block_size, head_dim, group)
    compile_for((kernels, batch) for batch in drawn)
    launches.clear()
    wrong = [f"{batch.shape}: {text}" for batch in drawn for text in judge(kernels, batch).wrong]
    assert not wrong
    assert len(launches) >= len(drawn) - 2


def test_one_graph_serves_other_rows_and_gives_the_same_bits(launches: list[Any]) -> None:
    """Captured with one mixture, replayed with another and with padding; ten replays do not differ."""
    kernels = dispatch.select("triton", "cuda", torch.bfloat16, 128, 16)
    first, second = (
        make_batch(Shape(16, KV_HEADS, 2, 128, rows), torch.bfloat16, "cuda", seed)
        for seed, rows in enumerate((((1000, 1000), (1, 700), (23, 900)), ((0, 0), (900, 1000), (124, 600))))
    )
    for batch in (first, second):
        kernels.store_kvcache(*batch.store_args)
    expected = [kernels.paged_attention(*batch.attention_args) for batch in (first, second)]
    pools = [torch.cat([a, b]) for a, b in ((first.k_pool, second.k_pool), (first.v_pool, second.v_pool))]
    tables = torch.zeros((3, 80), dtype=torch.int32, device="cuda")
    query, lens, contexts = (torch.clone(x) for x in (first.query, first.cu_query_lens, first.context_lens))
    out, graph = torch.full_like(query, math.nan), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.paged_attention(query, *pools, tables, lens, contexts, first.scale, 1024, 1280, out)
    assert launches
    for batch, answer, offset in zip((first, second), expected, (0, first.k_pool.shape[0]), strict=True):
        query.copy_(batch.query)
        lens.copy_(batch.cu_query_lens)
        contexts.copy_(batch.context_lens)
        tables[:, : batch.block_tables.shape[1]] = batch.block_tables + offset
        for _ in range(10):
            out.fill_(math.nan)
            graph.replay()
            assert torch.equal(out, answer)

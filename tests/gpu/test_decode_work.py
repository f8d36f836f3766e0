"""Attention of decodes by a work list on a CUDA device, against torch in float64.

Owns the drawn batches; knows no service. Invariant: outputs are poisoned, unused slots are NaN.
"""

import math
import random
from dataclasses import replace

import pytest
import torch

from paged_kernels.testing import GPU_BLOCK_SIZES, TOLERANCE
from paged_kernels.testing_prefixes import Decodes, Sizes, draw_decodes, pieces_of
from paged_kernels.triton_impl import decode_work, paged_attention
from paged_kernels.triton_impl.decode_work import DecodeWork, Policy
from paged_kernels.triton_impl.tiles import tiles_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
KINDS = (
    (torch.bfloat16, 128, False),
    (torch.bfloat16, 128, True),
    (torch.float16, 64, False),
    (torch.float32, 80, False),
    (torch.bfloat16, 96, False),
    (torch.bfloat16, 256, False),
)
"""dtype, head_dim, whether the pool is of 8 bits."""


def drawn_sizes(rng: random.Random, head_dim: int) -> Sizes:
    context, rows = rng.choice((100, 700, 2000)), rng.choice((8, 70, 300))
    block_size = rng.choice([size for size in GPU_BLOCK_SIZES if size <= context])
    return Sizes(block_size, rng.randint(1, 8), rng.choice((1, 2, 3, 4, 8, 16)), head_dim, rows, context)


def listed(batch: Decodes, policy: Policy, few: bool = False) -> DecodeWork:
    """few: with the tile of few rows, where the device has one."""
    kv_heads, head_dim = batch.k_pool.shape[2:]
    group = batch.query.shape[1] // kv_heads
    fp8 = batch.k_pool.dtype != batch.query.dtype
    tiles = tiles_for(batch.query.device, batch.query.dtype, head_dim, group, fp8)
    tile = tiles.few if few and tiles.few else tiles.short
    lens = batch.block_tables, batch.cu_query_lens, batch.context_lens
    return decode_work.list_work(*lens, batch.k_pool.shape[1], kv_heads, group, tile, policy)


@pytest.mark.parametrize(("dtype", "head_dim", "fp8"), KINDS, ids=str)
def test_drawn_batches(dtype: torch.dtype, head_dim: int, fp8: bool) -> None:
    rng, wrong, shared, joined = random.Random(head_dim), [], 0, 0
    for number in range(20):
        sizes = drawn_sizes(rng, head_dim)
        batch = draw_decodes(rng, sizes, dtype, "cuda", fp8)
        policy = Policy(least_shared=rng.choice((64, 256)), least_saved=rng.choice((1, 16)))
        work = listed(batch, policy, few=number % 2 == 1)
        out = torch.full_like(batch.query, math.nan)
        paged_attention.paged_attention(**batch.arguments, out=out, work=work)
        error = batch.error_of(out)
        if not error < TOLERANCE[dtype]:
            wrong.append(f"{number} {sizes} {policy}: {error:.1e}, {int(out.isnan().sum())} NaN")
        pieces, _ = pieces_of(work)
        shared += int((pieces[:, 1] > 1).sum())
        joined += int((pieces[:, 4] >= 0).sum())
    assert not wrong
    assert shared
    assert joined


def test_a_captured_list_serves_other_lengths_and_tables() -> None:
    """Equal bits, captured or not, whatever the list held when it was captured."""
    rng = random.Random(3)
    batches = [draw_decodes(rng, Sizes(16, 8, 2, 128, 90, 1500), torch.bfloat16, "cuda") for _ in range(4)]
    width = max(batch.block_tables.shape[1] for batch in batches)
    rows = max(len(batch.context_lens) for batch in batches)
    held = batches[0]
    tables = torch.zeros((rows, width), dtype=torch.int32, device="cuda")
    lens = torch.zeros(rows + 1, dtype=torch.int32, device="cuda")
    contexts = torch.zeros(rows, dtype=torch.int32, device="cuda")
    blocks = max(len(batch.k_pool) for batch in batches)
    pools = torch.zeros((2, blocks, *held.k_pool.shape[1:]), dtype=torch.bfloat16, device="cuda")
    query = torch.zeros((rows, *held.query.shape[1:]), dtype=torch.bfloat16, device="cuda")
    still = Decodes(query, pools[0], pools[1], tables, lens, contexts, 0.0)
    out = torch.empty_like(query)

    def step() -> None:
        work = listed(still, Policy())
        for _ in range(3):
            paged_attention.paged_attention(
                query, pools[0], pools[1], tables, lens, contexts, 0.1, 1, width * 16, out, work=work
            )

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for batch in batches:
        count, tokens = len(batch.context_lens), len(batch.query)
        tables[:count, : batch.block_tables.shape[1]] = batch.block_tables
        lens[: count + 1] = batch.cu_query_lens
        lens[count + 1 :] = tokens
        contexts.zero_()
        contexts[:count] = batch.context_lens
        query[:tokens] = batch.query
        pools.fill_(math.nan)
        pools[0, : len(batch.k_pool)] = batch.k_pool
        pools[1, : len(batch.v_pool)] = batch.v_pool
        step()
        expected = out.clone()
        out.fill_(math.nan)
        graph.replay()
        assert out[:tokens].equal(expected[:tokens])
        plain = paged_attention.paged_attention(**replace(batch, softcap=0.0).arguments | {"scale": 0.1})
        assert (out[:tokens] - plain).float().norm() < 1e-2 * plain.float().norm()

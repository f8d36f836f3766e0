"""The compiled CPU kernels against the naive reference and the torch ones.

Owns drawn and hand-made batches; knows no other backend. Invariant: outputs are poisoned before, unused slots
are NaN, and block table entries past a row's blocks are out of range.
"""

import dataclasses
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paged_kernels import torch_impl
from paged_kernels.contracts import DtypeError, ShapeError
from paged_kernels.cpu_impl import library, paged
from paged_kernels.testing import (
    TOLERANCE,
    Batch,
    Shape,
    draw_shape,
    make_batch,
    naive_attention,
    relative_error,
)

torch.set_num_threads(1)
OUT_OF_RANGE = 2**30
DTYPES = (torch.float32, torch.bfloat16)
BLOCK_SIZES = st.one_of(st.integers(1, 40), st.sampled_from([64, 100, 128, 256, 1000, 4095, 4096]))
HEAD_DIMS = st.sampled_from([1, 2, 7, 16, 33, 64, 80, 96, 128, 256])


@pytest.fixture(autouse=True, scope="module")
def two_threads() -> None:
    library.load().set_threads(2)


def step(batch: Batch) -> Tensor:
    """Store, then attend into a poisoned output."""
    paged.store_kvcache(*batch.store_args)
    out = torch.full_like(batch.query, math.nan)
    assert paged.paged_attention(*batch.attention_args, out, **batch.attention_options) is out
    return out


def check(shape: Shape, dtype: torch.dtype, seed: int = 0) -> None:
    batch = make_batch(shape, dtype, "cpu", seed, beyond=OUT_OF_RANGE)
    assert relative_error(step(batch), naive_attention(batch)) < TOLERANCE[dtype]


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32), block_size=BLOCK_SIZES, head_dim=HEAD_DIMS, dtype=st.sampled_from(DTYPES))
def test_any_batch_equals_the_naive_reference(
    seed: int, block_size: int, head_dim: int, dtype: torch.dtype
) -> None:
    check(draw_shape(random.Random(seed), block_size, head_dim, 48, 6), dtype, seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 15, 16, 17, 4096])
def test_decodes_chunks_prompts_and_empty_rows_share_a_batch(dtype: torch.dtype, block_size: int) -> None:
    rows = ((1, 1), (1, 300), (16, 16), (64, 64), (65, 65), (5, 32), (0, 9), (1, 33), (2, 63), (1, 128))
    check(Shape(block_size, 2, 3, 16, rows), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("window", "softcap"), [(1, 0.0), (16, 0.0), (100, 0.0), (0, 2.0), (17, 30.0), (5000, 1.0)]
)
def test_windows_and_soft_caps(dtype: torch.dtype, window: int, softcap: float) -> None:
    rows = ((1, 1), (1, 300), (16, 16), (64, 64), (70, 270), (0, 9), (1, 33), (1, 17), (1, 16), (300, 300))
    check(Shape(16, 2, 3, 32, rows, window, softcap), dtype)


@pytest.mark.parametrize("group", [*range(1, 18), 49, 71])
def test_query_heads_per_kv_head(group: int) -> None:
    check(Shape(4, 2, group, 8, ((1, 9), (6, 10), (40, 90))), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_query_has_the_same_bits_in_a_decode_a_chunk_and_a_prompt(dtype: torch.dtype) -> None:
    batch = make_batch(Shape(16, 3, 3, 64, ((1, 100), (200, 200), (1, 331), (64, 64))), dtype, "cpu", 3)
    crowd = step(batch)
    cu = batch.cu_query_lens.tolist()
    for row, (queries, context) in enumerate(batch.shape.rows):
        for first, last in ((0, queries), (queries - 1, queries), (queries // 3, queries // 2 + 1)):
            alone = paged.paged_attention(
                batch.query[cu[row] + first : cu[row] + last],
                batch.k_pool,
                batch.v_pool,
                batch.block_tables[row : row + 1],
                torch.tensor([0, last - first], dtype=torch.int32),
                torch.tensor([context - queries + last], dtype=torch.int32),
                batch.scale,
                queries,
                context,
            )
            assert crowd[cu[row] + first : cu[row] + last].equal(alone)


def test_packed_queries_and_pools_of_one_layer() -> None:
    batch = make_batch(Shape(8, 2, 2, 16, ((1, 20), (7, 9))), torch.float32, "cpu", 4)
    whole = torch.full((2, 3, *batch.k_pool.shape), math.nan)
    whole[0, 1], whole[1, 1] = batch.k_pool, batch.v_pool
    batch = dataclasses.replace(batch, k_pool=whole[0, 1], v_pool=whole[1, 1])
    paged.store_kvcache(*batch.store_args)
    packed = torch.full((batch.query.shape[0], 12, 16), math.nan)
    packed[:, 3:7] = batch.query
    out = paged.paged_attention(packed[:, 3:7], *batch.attention_args[1:])
    assert relative_error(out, naive_attention(batch)) < TOLERANCE[torch.float32]
    assert whole[:, [0, 2]].isnan().all()


def test_a_batch_without_rows_and_a_row_without_context() -> None:
    batch = make_batch(Shape(8, 1, 1, 4, ((1, 3),)), torch.float32, "cpu", 5)
    none = torch.zeros(0, dtype=torch.int32)
    pools = (batch.k_pool, batch.v_pool)
    empty = (batch.query[:0], *pools, batch.block_tables[:0], none.new_zeros(1), none, 1.0, 0, 0)
    assert paged.paged_attention(*empty).shape == (0, 1, 4)
    poisoned = torch.full_like(batch.query, math.nan)
    lens = torch.tensor([0, 1], dtype=torch.int32)
    paged.paged_attention(
        batch.query, *pools, batch.block_tables, lens, batch.context_lens * 0, 1.0, 1, 3, poisoned
    )
    assert poisoned.eq(0).all()


def test_a_nan_in_a_context_reaches_its_own_row_only() -> None:
    batch = make_batch(Shape(16, 1, 2, 16, ((1, 40), (1, 40))), torch.bfloat16, "cpu", 6)
    paged.store_kvcache(*batch.store_args)
    batch.v_pool.view(-1, 1, 16)[batch.slot_mapping[0]] = math.nan
    out = paged.paged_attention(*batch.attention_args)
    assert out[0].isnan().all()
    assert not out[1].isnan().any()


@pytest.mark.parametrize("large", [3e4, 1e30])
def test_large_scores_do_not_overflow(large: float) -> None:
    batch = make_batch(Shape(4, 1, 2, 8, ((3, 70), (1, 5))), torch.float32, "cpu", 7)
    batch = dataclasses.replace(batch, query=batch.query * large)
    assert step(batch).isfinite().all()


def test_what_would_leave_the_memory_is_refused() -> None:
    batch = make_batch(Shape(4, 1, 1, 8, ((2, 9),)), torch.float32, "cpu", 8)
    args: list[Any] = list(batch.attention_args)

    def changed(place: int, value: Tensor) -> list[Any]:
        return [*args[:place], value, *args[place + 1 :]]

    with pytest.raises(IndexError, match="block_tables"):
        paged.paged_attention(*changed(3, torch.full_like(batch.block_tables, 99)))
    with pytest.raises(IndexError, match="block_tables"):
        paged.paged_attention(*changed(3, torch.full_like(batch.block_tables, -1)))
    with pytest.raises(ShapeError, match="cu_query_lens"):
        paged.paged_attention(*changed(4, torch.tensor([0, 3], dtype=torch.int32)))
    with pytest.raises(ShapeError, match="context_lens"):
        paged.paged_attention(*changed(5, torch.tensor([10], dtype=torch.int32)))
    with pytest.raises(ShapeError, match="context_lens"):
        paged.paged_attention(*changed(5, torch.tensor([1], dtype=torch.int32)))
    double: list[Any] = [
        item.double() if isinstance(item, Tensor) and item.is_floating_point() else item for item in args
    ]
    with pytest.raises(DtypeError, match="query"):
        paged.paged_attention(*double)


@pytest.mark.parametrize("slot", [8, 1000])
def test_a_slot_outside_the_pool_writes_nothing(slot: int) -> None:
    pool, key = torch.zeros(2, 2, 4, 1, 1), torch.ones(2, 1, 1)
    with pytest.raises(IndexError, match="slot_mapping"):
        paged.store_kvcache(key, key, pool[0], pool[1], torch.tensor([0, slot]))
    assert pool.eq(0).all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    block_size=st.integers(1, 40),
    tokens=st.integers(0, 60),
    index=st.sampled_from([torch.int32, torch.int64]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_store_leaves_what_torch_leaves(
    seed: int, block_size: int, tokens: int, index: torch.dtype, dtype: torch.dtype
) -> None:
    rng = random.Random(seed)
    blocks = -(-(tokens + 2) // block_size)
    slots = [-1 if rng.random() < 0.2 else slot for slot in rng.sample(range(blocks * block_size), tokens)]
    packed = torch.randn(tokens, 7, 5).to(dtype)
    ours = torch.randn(2, blocks, block_size, 3, 5).to(dtype)
    theirs, mapping = ours.clone(), torch.tensor(slots, dtype=index)
    paged.store_kvcache(packed[:, 1:4], packed[:, 4:], ours[0], ours[1], mapping)
    torch_impl.store_kvcache(packed[:, 1:4], packed[:, 4:], theirs[0], theirs[1], mapping)
    assert ours.equal(theirs)

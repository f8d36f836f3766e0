"""The torch paged_attention against the naive reference.

Owns drawn and hand-made batches; knows no other backend. Invariant: outputs are poisoned before, unused slots
are NaN, and block table entries past a row's blocks are out of range.
"""

import dataclasses
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paged_kernels import torch_impl
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
BLOCK_SIZES = st.one_of(st.integers(1, 40), st.sampled_from([64, 100, 128, 256, 1000, 1024, 4095, 4096]))
HEAD_DIMS = st.sampled_from([1, 2, 7, 16, 33, 64, 80, 96, 128, 256])
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def step(batch: Batch) -> Tensor:
    """Store, then attend into a poisoned output."""
    torch_impl.store_kvcache(*batch.store_args)
    out = torch.full_like(batch.query, math.nan)
    assert torch_impl.paged_attention(*batch.attention_args, out, **batch.attention_options) is out
    return out


def check(shape: Shape, dtype: torch.dtype, seed: int = 0) -> None:
    batch = make_batch(shape, dtype, "cpu", seed, beyond=OUT_OF_RANGE)
    assert relative_error(step(batch), naive_attention(batch)) < TOLERANCE[dtype]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), block_size=BLOCK_SIZES, head_dim=HEAD_DIMS)
def test_any_batch_equals_the_naive_reference_in_float64(seed: int, block_size: int, head_dim: int) -> None:
    check(draw_shape(random.Random(seed), block_size, head_dim, 48, 6), torch.float64, seed)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), block_size=BLOCK_SIZES, dtype=st.sampled_from(DTYPES[1:]))
def test_any_batch_is_within_the_tolerance_of_its_dtype(
    seed: int, block_size: int, dtype: torch.dtype
) -> None:
    check(draw_shape(random.Random(seed), block_size, 32, 40, 5), dtype, seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 15, 16, 17, 4096])
def test_decodes_chunks_prompts_and_empty_rows_share_a_batch(dtype: torch.dtype, block_size: int) -> None:
    rows = ((1, 1), (1, 700), (16, 16), (17, 17), (5, 32), (0, 9), (1, 33), (2, 3), (1, 340))
    check(Shape(block_size, 2, 3, 16, rows), dtype)


@pytest.mark.parametrize("rows", [((600, 600),), ((300, 900),), ((257, 1000), (1, 900))], ids=str)
def test_chunks_longer_than_a_tile(rows: tuple[tuple[int, int], ...]) -> None:
    check(Shape(16, 1, 3, 8, rows), torch.float64)


def test_many_decode_rows_of_ragged_length() -> None:
    lengths = random.Random(1).sample(range(1, 600), 40)
    check(Shape(16, 3, 3, 16, tuple((1, length) for length in lengths)), torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("window", "softcap"), [(1, 0.0), (16, 0.0), (100, 0.0), (0, 2.0), (17, 30.0), (5000, 1.0)]
)
def test_windows_and_soft_caps(dtype: torch.dtype, window: int, softcap: float) -> None:
    rows = ((1, 1), (1, 300), (16, 16), (64, 64), (70, 270), (0, 9), (1, 33), (1, 17), (1, 16), (300, 300))
    check(Shape(16, 2, 3, 32, rows, window, softcap), dtype)


@pytest.mark.parametrize("group", range(1, 17))
def test_query_heads_per_kv_head(group: int) -> None:
    check(Shape(4, 2, group, 8, ((1, 9), (6, 10))), torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_does_not_depend_on_its_batch_beyond_rounding(dtype: torch.dtype) -> None:
    batch = make_batch(Shape(16, 3, 3, 64, ((1, 100), (30, 50), (1, 431), (1, 7), (64, 64))), dtype, "cpu", 3)
    crowd = step(batch)
    cu = batch.cu_query_lens.tolist()
    for row, (queries, context) in enumerate(batch.shape.rows):
        alone = torch_impl.paged_attention(
            batch.query[cu[row] : cu[row + 1]],
            batch.k_pool,
            batch.v_pool,
            batch.block_tables[row : row + 1],
            torch.tensor([0, queries], dtype=torch.int32),
            batch.context_lens[row : row + 1],
            batch.scale,
            queries,
            context,
        )
        assert relative_error(crowd[cu[row] : cu[row + 1]], alone) < TOLERANCE[dtype]


def test_packed_queries_and_a_new_output_tensor() -> None:
    batch = make_batch(Shape(8, 2, 2, 16, ((1, 20), (7, 9))), torch.float32, "cpu", 4)
    torch_impl.store_kvcache(*batch.store_args)
    packed = torch.full((batch.query.shape[0], 12, 16), math.nan)
    packed[:, 3:7] = batch.query
    out = torch_impl.paged_attention(packed[:, 3:7], *batch.attention_args[1:])
    assert out.is_contiguous()
    assert relative_error(out, naive_attention(batch)) < TOLERANCE[torch.float32]


def test_a_batch_without_rows_and_a_row_without_context() -> None:
    batch = make_batch(Shape(8, 1, 1, 4, ((1, 3),)), torch.float32, "cpu", 5)
    none = torch.zeros(0, dtype=torch.int32)
    pools = (batch.k_pool, batch.v_pool)
    out = torch_impl.paged_attention(
        batch.query[:0], *pools, batch.block_tables[:0], none.new_zeros(1), none, 1.0, 0, 0
    )
    assert out.shape == (0, 1, 4)
    poisoned = torch.full_like(batch.query, math.nan)
    lens = torch.tensor([0, 1], dtype=torch.int32)
    torch_impl.paged_attention(
        batch.query, *pools, batch.block_tables, lens, batch.context_lens * 0, 1.0, 1, 3, poisoned
    )
    assert poisoned.eq(0).all()


def test_a_row_may_read_blocks_that_another_row_of_the_step_fills_a06() -> None:
    """The publish rule: with store before attention, a prefix hit inside one plan reads finished blocks."""
    batch = make_batch(Shape(4, 2, 2, 8, ((8, 8), (3, 11))), torch.float64, "cpu", 6)
    tables = batch.block_tables.clone()
    owner = batch.block_tables[1].clone()
    tables[1, :2] = tables[0, :2]
    before = torch_impl.paged_attention(*batch.attention_args)
    assert before.isnan().any(), "attention before store must not look right"
    torch_impl.store_kvcache(*batch.store_args)
    out = torch_impl.paged_attention(*dataclasses.replace(batch, block_tables=tables).attention_args)
    shared_keys = torch.cat([batch.row_keys[0], batch.row_keys[1][8:]])
    shared_values = torch.cat([batch.row_values[0], batch.row_values[1][8:]])
    batch.row_keys[1], batch.row_values[1] = shared_keys, shared_values
    assert not owner.equal(tables[1])
    assert relative_error(out, naive_attention(batch)) < TOLERANCE[torch.float64]


def test_one_corrupt_slot_shows() -> None:
    batch = make_batch(Shape(16, 1, 1, 16, ((1, 40),)), torch.float64, "cpu", 7)
    reference = naive_attention(batch)
    torch_impl.store_kvcache(*batch.store_args)
    block = int(batch.block_tables[0, 1])
    batch.v_pool[block, 3] += 0.1
    assert relative_error(torch_impl.paged_attention(*batch.attention_args), reference) > 1e-6

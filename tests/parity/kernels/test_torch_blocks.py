"""The torch store_kvcache, copy_blocks and zero_blocks, slot by slot.

Owns their tests; knows no other backend. Invariant: whatever is not named stays bit for bit as it was.
"""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_kernels import torch_impl

torch.set_num_threads(1)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    block_size=st.one_of(st.integers(1, 20), st.just(4096)),
    tokens=st.integers(0, 30),
    index=st.sampled_from([torch.int32, torch.int64]),
    dtype=st.sampled_from(DTYPES),
)
def test_store_writes_the_mapped_slots_and_no_others(
    seed: int, block_size: int, tokens: int, index: torch.dtype, dtype: torch.dtype
) -> None:
    rng = random.Random(seed)
    blocks = -(-(tokens + 2) // block_size)
    slots = rng.sample(range(blocks * block_size), tokens)
    slots = [-1 if rng.random() < 0.2 else slot for slot in slots]
    key, value = torch.randn(2, tokens, 3, 5).to(dtype)
    k_pool, v_pool = torch.randn(2, blocks, block_size, 3, 5).to(dtype)
    expected = k_pool.clone(), v_pool.clone()
    for token, slot in enumerate(slots):
        if slot >= 0:
            expected[0][slot // block_size, slot % block_size] = key[token]
            expected[1][slot // block_size, slot % block_size] = value[token]
    torch_impl.store_kvcache(key, value, k_pool, v_pool, torch.tensor(slots, dtype=index))
    assert k_pool.equal(expected[0])
    assert v_pool.equal(expected[1])


def test_the_textbook_slots() -> None:
    """Table [2], block 4, positions 0-2; then table [1, 6], positions 3-5."""
    key = torch.arange(1.0, 7.0).view(6, 1, 1)
    pool = torch.zeros(2, 8, 4, 1, 1)
    torch_impl.store_kvcache(key, -key, pool[0], pool[1], torch.tensor([8, 9, 10, 7, 24, 25]))
    assert pool[0].flatten().nonzero().flatten().tolist() == [7, 8, 9, 10, 24, 25]
    assert pool[0, 2, :3].flatten().tolist() == [1, 2, 3]
    assert pool[1, [1, 6, 6], [3, 0, 1]].flatten().tolist() == [-4, -5, -6]


def test_padding_writes_nothing_not_even_the_last_slot() -> None:
    pool = torch.zeros(2, 2, 4, 1, 2)
    key = torch.full((3, 1, 2), math.nan)
    torch_impl.store_kvcache(key, key, pool[0], pool[1], torch.full((3,), -1))
    assert pool.eq(0).all()


def test_store_takes_views_of_packed_projections_and_of_one_layer() -> None:
    packed = torch.randn(5, 8, 4)
    pool = torch.zeros(2, 3, 4, 2, 2, 4)
    torch_impl.store_kvcache(packed[:, 4:6], packed[:, 6:8], pool[0, 1], pool[1, 1], torch.arange(5))
    assert pool[0, 1].view(-1, 2, 4)[:5].equal(packed[:, 4:6])
    assert pool[1, 1].view(-1, 2, 4)[:5].equal(packed[:, 6:8])
    assert pool[:, [0, 2]].eq(0).all()


@pytest.mark.parametrize("slot", [8, 1000])
def test_a_slot_outside_the_pool_is_an_error_on_cpu(slot: int) -> None:
    pool, key = torch.zeros(2, 2, 4, 1, 1), torch.zeros(1, 1, 1)
    with pytest.raises(IndexError):
        torch_impl.store_kvcache(key, key, pool[0], pool[1], torch.tensor([slot]))


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copy_and_zero_touch_whole_blocks_of_every_layer(index: torch.dtype, dtype: torch.dtype) -> None:
    pool = torch.randn(2, 3, 6, 4, 2, 5).to(dtype)
    expected = pool.clone()
    expected[:, :, 4], expected[:, :, 0], expected[:, :, [1, 3]] = pool[:, :, 2], pool[:, :, 5], 0
    torch_impl.copy_blocks(pool, torch.tensor([[2, 4], [5, 0]], dtype=index))
    torch_impl.zero_blocks(pool, torch.tensor([3, 1], dtype=index))
    assert pool.equal(expected)


def test_zeroing_clears_nan_and_empty_lists_do_nothing() -> None:
    pool = torch.full((2, 1, 2, 2, 1, 1), math.nan)
    torch_impl.zero_blocks(pool, torch.tensor([1]))
    torch_impl.zero_blocks(pool, torch.zeros(0, dtype=torch.int32))
    torch_impl.copy_blocks(pool, torch.zeros((0, 2), dtype=torch.int32))
    assert pool[:, :, 1].eq(0).all()
    assert pool[:, :, 0].isnan().all()

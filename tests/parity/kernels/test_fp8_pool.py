"""The 8-bit pool: its two conversions against the format's own list of numbers, and attention over it.

Owns a reference that knows only the numbers of e4m3; knows no Triton. Invariant: unused slots have every bit
set, which is NaN.
"""

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paged_kernels import contracts, fp8_pool, torch_impl
from paged_kernels.cpu_impl import paged
from paged_kernels.testing import TOLERANCE, draw_shape, judge, make_batch, naive_attention, relative_error

torch.set_num_threads(1)
FINITE = sorted({(8 + m) / 8 * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)} - {480.0})
GRID = torch.tensor([0.0, *(m / 8 * 2.0**-6 for m in range(1, 8)), *FINITE], dtype=torch.float64)
"""Every magnitude of e4m3, by its definition: 4 bits of exponent with bias 7, 3 of mantissa, no infinity."""


def nearest(values: Tensor) -> Tensor:
    """The e4m3 numbers nearest to values up to 448; of two, the one with an even last bit."""
    size = values.double().abs()
    high = torch.searchsorted(GRID, size).clamp_max(len(GRID) - 1)
    low = (high - 1).clamp_min(0)
    to_low, to_high = size - GRID[low], GRID[high] - size
    takes_low = (to_low < to_high) | ((to_low == to_high) & (low % 2 == 0))
    return torch.where(takes_low, GRID[low], GRID[high]) * values.sign()


def heads(*shape: int, seed: int = 0) -> Tensor:
    """Random heads, of sizes from 1e-30 to 1e30."""
    generator = torch.Generator().manual_seed(seed)
    size = 10.0 ** torch.empty(shape[:-1]).uniform_(-30, 30, generator=generator)
    return torch.randn(shape, generator=generator) * size[..., None]


def test_every_head_becomes_the_nearest_numbers_over_a_power_of_two() -> None:
    values = torch.cat((heads(500, 64), torch.linspace(-448, 448, 64 * 500).view(500, 64)))
    codes, exponents = fp8_pool.quantise(values)
    power = 2.0 ** (exponents.double() - 127)
    greatest = values.double().abs().amax(-1)
    assert (greatest <= 448 * power).all()
    assert (greatest > 224 * power).all(), "the least power of two that fits"
    expected = nearest(values.double() / power[:, None]) * power[:, None]
    assert torch.equal(fp8_pool.dequantise(codes, exponents, torch.float64), expected)


def test_the_error_is_at_most_a_sixteenth_of_a_value_or_a_trifle_of_its_head() -> None:
    values = heads(1000, 128).double()
    back = fp8_pool.dequantise(*fp8_pool.quantise(values), torch.float64)
    error, greatest = (back - values).abs(), values.abs().amax(-1, keepdim=True)
    assert (error <= torch.maximum(values.abs() / 16, greatest * 2.0**-17)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_comes_out_goes_in_again_unchanged(dtype: torch.dtype) -> None:
    """So a block that is read, sent and stored again keeps its bits; and no reader rounds."""
    back = fp8_pool.dequantise(*fp8_pool.quantise(heads(300, 80)), dtype)
    assert torch.equal(fp8_pool.dequantise(*fp8_pool.quantise(back), dtype), back)
    assert torch.equal(back.bfloat16().to(dtype), back), "bfloat16 holds every value of the pool"


def test_extreme_heads() -> None:
    greatest = torch.finfo(torch.float32).max
    values = torch.tensor([[0.0] * 4, [448.0] * 4, [449.0] * 4, [1e-45] * 4, [greatest, -greatest, 1.0, 0.0]])
    codes, exponents = fp8_pool.quantise(values)
    assert exponents.tolist() == [1, 127, 128, 1, 247]
    back = fp8_pool.dequantise(codes, exponents, torch.float64)
    assert back[:4, 0].tolist() == [0.0, 448.0, 448.0, 0.0]
    assert back[4].tolist() == [2.0**128, -(2.0**128), 0.0, 0.0]


def test_nan_and_infinity_become_nan_and_leave_their_neighbours() -> None:
    values = torch.tensor([[1.0, math.nan, -math.inf, math.inf], [3.0, 4.0, 5.0, 6.0]])
    back = fp8_pool.dequantise(*fp8_pool.quantise(values), torch.float32)
    assert back[0, 0] == 1
    assert back[0, 1:].isnan().all()
    assert back[1].tolist() == [3.0, 4.0, 5.0, 6.0]


def test_a_token_leaves_the_same_bytes_in_any_company_and_any_slot() -> None:
    values = heads(40, 2, 16)
    alone = [fp8_pool.quantise(value[None]) for value in values]
    codes, exponents = fp8_pool.quantise(values)
    assert torch.equal(torch.cat([one[0] for one in alone]), codes)
    assert torch.equal(torch.cat([one[1] for one in alone]), exponents)


def made_pool(blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """([2, 1, B, bytes] of random bytes, and K of it)."""
    size = fp8_pool.block_bytes(block_size, kv_heads, head_dim)
    whole = torch.randint(0, 256, (2, 1, blocks, size), dtype=torch.uint8)
    return whole, fp8_pool.values_of(whole[0, 0], block_size, kv_heads, head_dim)


@pytest.mark.parametrize(
    ("block_size", "kv_heads", "head_dim"), [(1, 1, 1), (16, 8, 128), (7, 3, 80), (4096, 1, 64)]
)
def test_values_and_exponents_share_no_byte_and_blocks_are_whole_16_bytes(
    block_size: int, kv_heads: int, head_dim: int
) -> None:
    whole, pool = made_pool(3, block_size, kv_heads, head_dim)
    whole.zero_()
    pool.view(torch.uint8).fill_(1)
    exponents = fp8_pool.exponents_of(pool)
    assert not exponents.any()
    exponents.fill_(2)
    assert (pool.view(torch.uint8) == 1).all()
    counts = torch.bincount(whole[0].flatten(), minlength=3).tolist()
    assert counts[1:] == [pool.numel(), exponents.numel()]
    assert 0 <= counts[0] < 3 * 32
    assert whole.shape[-1] % 16 == 0
    words = fp8_pool.exponent_words_of(pool).contiguous().view(torch.uint8)
    assert torch.equal(words[:, : kv_heads * block_size], exponents.flatten(1))
    assert not whole[1].any()


def test_an_8_bit_pool_without_exponents_is_refused() -> None:
    pool = torch.zeros((3, 4, 2, 16)).to(fp8_pool.DTYPE)
    key, slots = torch.zeros((1, 2, 16)), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(contracts.LayoutError, match=r"k_pool.*exponents"):
        torch_impl.store_kvcache(key, key, pool, pool, slots)


def test_the_compiled_cpu_kernels_refuse_it() -> None:
    _, pool = made_pool(3, 4, 2, 16)
    key, slots = torch.zeros((1, 2, 16)), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(contracts.DtypeError, match=r"k_pool.*float8_e4m3fn"):
        paged.store_kvcache(key, key, pool, pool, slots)


def test_a_slot_outside_is_an_index_error() -> None:
    _, pool = made_pool(3, 4, 2, 16)
    key = torch.zeros((1, 2, 16))
    with pytest.raises(IndexError):
        torch_impl.store_kvcache(key, key, pool, pool, torch.tensor([12]))


def test_copies_and_zeros_take_the_exponents_along() -> None:
    whole, pool = made_pool(6, 4, 2, 16)
    before = whole.clone()
    torch_impl.copy_blocks(whole, torch.tensor([[1, 4], [3, 0]]))
    torch_impl.zero_blocks(whole, torch.tensor([5]))
    assert torch.equal(whole[:, :, 4], before[:, :, 1])
    assert torch.equal(whole[:, :, 0], before[:, :, 3])
    zeros = torch.zeros(1, 4, 2, 16, dtype=torch.float64)
    assert torch.equal(fp8_pool.read_blocks(pool, torch.tensor([5]), torch.float64)[None], zeros)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_attention_is_that_of_the_numbers_in_the_pool(seed: int, dtype: torch.dtype) -> None:
    rng = random.Random(seed)
    shape = draw_shape(rng, rng.choice((1, 3, 16, 100, 4096)), rng.choice((16, 33, 64, 80)), 60, 4)
    batch = make_batch(shape, dtype, "cpu", seed, fp8=True)
    torch_impl.store_kvcache(*batch.store_args)
    out = torch.full_like(batch.query, math.nan)
    torch_impl.paged_attention(*batch.attention_args, out, **batch.attention_options)
    assert relative_error(out, naive_attention(batch)) < TOLERANCE[dtype]


def test_the_judge_notices_a_wrong_exponent() -> None:
    """What the GPU tests rest on: one exponent too high by one, in one slot of one head."""
    rng = random.Random(1)
    shape = draw_shape(rng, 16, 64, 60, 4)

    class Off:
        paged_attention = staticmethod(torch_impl.paged_attention)

        @staticmethod
        def store_kvcache(key: Any, value: Any, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
            torch_impl.store_kvcache(key, value, k_pool, v_pool, slots)
            slot = int(slots[0])
            fp8_pool.exponents_of(v_pool)[slot // 16, 0, slot % 16] += 1

    assert judge(torch_impl, make_batch(shape, torch.float32, "cpu", 3, fp8=True)).wrong == ()
    assert judge(Off, make_batch(shape, torch.float32, "cpu", 3, fp8=True)).wrong

"""The pool in 8 bits: its layout, and the two conversions in plain PyTorch, which define them.

Owns what a block of bytes holds: values in e4m3 (Micikevicius et al., arXiv 2209.05433), one power of two for
each head of each slot (as in the OCP Microscaling formats, but for a head instead of 32 values). Knows no
sequence and no launch. Invariant: what a token leaves in the pool depends on its own key and value alone, and
a value comes out exactly as it lies there: both conversions are without rounding but the one to e4m3.

A block of one layer of K or V is one run of bytes: values [block_size, kv_heads, head_dim], then exponents
[kv_heads, block_size], each padded to whole 16 bytes. So copies, zeros and swaps move the exponents along.
"""

import torch
from torch import Tensor

DTYPE = torch.float8_e4m3fn
LAYOUT = "kv,layer,block,slot,kv_head,head_dim+kv_head,slot"
_ALIGNMENT = 16
_NOT_A_NUMBER = 0x7F
_LEAST_EXPONENT = 1


def block_bytes(block_size: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of K (or V) of one block in one layer."""
    heads = block_size * kv_heads
    return _aligned(heads * head_dim) + _aligned(heads)


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def values_of(layer: Tensor, block_size: int, kv_heads: int, head_dim: int) -> Tensor:
    """The e4m3 values [B, block_size, kv_heads, head_dim] of one layer's bytes [B, block_bytes], a view.

    It is what the kernels take as k_pool or v_pool; `exponents_of` finds the rest behind it.
    """
    shape = (layer.shape[0], block_size, kv_heads, head_dim)
    strides = (layer.stride(0), kv_heads * head_dim, head_dim, 1)
    return layer.as_strided(shape, strides).view(DTYPE)


def is_fp8(pool: Tensor) -> bool:
    """Whether a layer of the pool [B, bs, Hkv, D] holds e4m3 values with exponents."""
    return pool.dtype == DTYPE


def has_exponents(pool: Tensor) -> bool:
    """Whether the strides of e4m3 values [B, bs, Hkv, D] are those of `values_of`."""
    _, block_size, kv_heads, head_dim = pool.shape
    inner = (kv_heads * head_dim, head_dim, 1)
    return pool.stride()[1:] == inner and pool.stride(0) == block_bytes(block_size, kv_heads, head_dim)


def exponents_of(pool: Tensor) -> Tensor:
    """The exponents uint8 [B, kv_heads, block_size] behind values [B, bs, Hkv, D], a view."""
    blocks, block_size, kv_heads, head_dim = pool.shape
    first = pool.storage_offset() + _aligned(block_size * kv_heads * head_dim)
    strides = (pool.stride(0), block_size, 1)
    return pool.view(torch.uint8).as_strided((blocks, kv_heads, block_size), strides, first)


def exponent_words_of(pool: Tensor) -> Tensor:
    """The same and their padding as int32 [B, words], four to a word, little end first: what devices load."""
    blocks, block_size, kv_heads, head_dim = pool.shape
    first = pool.storage_offset() + _aligned(block_size * kv_heads * head_dim)
    shape = (blocks, _aligned(block_size * kv_heads))
    return pool.view(torch.uint8).as_strided(shape, (pool.stride(0), 1), first).view(torch.int32)


def quantise(values: Tensor) -> tuple[Tensor, Tensor]:
    """Heads [..., D] -> (e4m3 values as bytes [..., D], exponents uint8 [...]).

    An exponent e means 2^(e - 127): the least power of two by which the head's greatest finite magnitude
    becomes at most 448, the greatest e4m3 value. Rounds to nearest, ties to even. NaN and infinity, which
    e4m3 has not, become NaN, so that a broken row is noticed as with other pools.
    """
    wide = values.float()
    finite = wide.isfinite()
    greatest = torch.where(finite, wide.abs(), 0.0).amax(-1)
    exponents = (((greatest.view(torch.int32) + 0x1FFFFF) >> 23) - 8).clamp_min(_LEAST_EXPONENT)
    inverse = ((254 - exponents) << 23).view(torch.float32)
    codes = (wide * inverse[..., None]).to(DTYPE).view(torch.uint8)
    return torch.where(finite, codes, _NOT_A_NUMBER), exponents.to(torch.uint8)


def dequantise(codes: Tensor, exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """e4m3 values as bytes [..., D] and exponents [...] -> [..., D] in float32 or float64."""
    scale = (exponents.int() << 23).view(torch.float32)
    return codes.view(DTYPE).to(dtype) * scale[..., None].to(dtype)


def write_slots(pool: Tensor, slots: Tensor, values: Tensor) -> None:
    """Stores heads [N, Hkv, D] in slots [N] int64. Raises IndexError on a CPU for a slot outside."""
    codes, exponents = quantise(values)
    blocks, offsets = slots // pool.shape[1], slots % pool.shape[1]
    pool.view(torch.uint8)[blocks, offsets] = codes
    exponents_of(pool)[blocks, :, offsets] = exponents


def read_slots(pool: Tensor, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """Heads [N, Hkv, D] of slots [N] int64, in float32 or float64."""
    blocks, offsets = slots // pool.shape[1], slots % pool.shape[1]
    return dequantise(pool.view(torch.uint8)[blocks, offsets], exponents_of(pool)[blocks, :, offsets], dtype)


def read_blocks(pool: Tensor, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Heads [N * block_size, Hkv, D] of blocks [N], in float32 or float64."""
    codes = pool.view(torch.uint8).index_select(0, blocks)
    exponents = exponents_of(pool).index_select(0, blocks).transpose(1, 2)
    return dequantise(codes, exponents, dtype).flatten(0, 1)

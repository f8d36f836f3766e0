# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""To e4m3 with an exponent a head, as device functions: what fp8_pool.quantise does, bit for bit.

Owns that arithmetic and the views that launches pass on; knows no launch. Invariant: only integer steps and
exact products, so the result is the same on every device and in the interpreter.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_kernels import fp8_pool


@triton.jit
def magnitudes(values):
    """|values| in float32, 0 for NaN and infinity."""
    size = tl.abs(values)
    return tl.where(size < float("inf"), size, 0.0)


@triton.jit
def exponents_for(greatest):
    """int32 exponents of heads whose greatest finite magnitudes are these."""
    bits = greatest.to(tl.int32, bitcast=True)
    return tl.maximum(((bits + 0x1FFFFF) >> 23) - 8, 1)


@triton.jit
def power_of_two(exponents):
    """2^(e - 127) in float32, of 8-bit exponents."""
    return (exponents.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def to_e4m3(values, exponents):
    """Bytes of values, float32, over their exponents; both of one shape, or exponents broadcast.

    A normal result is float32 rounded to 3 bits, to even, with another bias. A subnormal one is a multiple of
    2^-9: adding 2^14 leaves exactly those bits.
    """
    scaled = values * power_of_two(254 - exponents)
    bits = scaled.to(tl.int32, bitcast=True)
    size = tl.abs(scaled)
    normal = (((bits & 0x7FFFFFFF) + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
    subnormal = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(size < 0.015625, subnormal, normal) | ((bits >> 24) & 0x80)
    return tl.where(tl.abs(values) < float("inf"), code, 0x7F).to(tl.uint8)


@triton.jit
def load_exponents(exponents, block, place, word_stride):
    """The exponents of these places of blocks, int32.

    They are loaded as words of four, for less at once would not be fetched ahead.
    """
    word = exponents + block * word_stride + place // 4
    return tl.load(word) >> (place % 4 * 8) & 0xFF


@triton.jit
def even(pairs, dtype: tl.constexpr):
    """The lower e4m3 values of pairs, int16, as dtype.

    A matrix unit takes a value from shared memory with that of the next key, which lies a whole slot away:
    alone, each byte is a load of its own; as pairs of dimensions they come by the hardware's transposed load.
    """
    if dtype == tl.float16:
        return tl.inline_asm_elementwise(
            "{.reg .b32 t; .reg .b16 a, b; prmt.b32 t, $1, 0, 0x0020; mov.b32 {a, b}, t; "
            "cvt.rn.f16x2.e4m3x2 $0, a;}",
            "=r,r", [pairs], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    return (pairs & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(dtype)


@triton.jit
def odd(pairs, dtype: tl.constexpr):
    """The upper e4m3 values of pairs, int16, as dtype."""
    if dtype == tl.float16:
        return tl.inline_asm_elementwise(
            "{.reg .b32 t; .reg .b16 a, b; prmt.b32 t, $1, 0, 0x0031; mov.b32 {a, b}, t; "
            "cvt.rn.f16x2.e4m3x2 $0, a;}",
            "=r,r", [pairs], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    return (pairs >> 8 & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(dtype)


@dataclass(frozen=True, slots=True)
class Pools:
    """One layer's K and V as kernels take them to write: values and, where scaled, exponents, all as bytes.

    Not scaled: the exponents stand for nothing, and all are the pools themselves.
    """

    k_bytes: Tensor
    v_bytes: Tensor
    k_exponents: Tensor
    v_exponents: Tensor
    scaled: bool

    @classmethod
    def of(cls, k_pool: Tensor, v_pool: Tensor) -> "Pools":
        if not fp8_pool.is_fp8(k_pool):
            return cls(k_pool, v_pool, k_pool, v_pool, False)
        k_exponents, v_exponents = fp8_pool.exponents_of(k_pool), fp8_pool.exponents_of(v_pool)
        return cls(k_pool.view(torch.uint8), v_pool.view(torch.uint8), k_exponents, v_exponents, True)


@dataclass(frozen=True, slots=True)
class ReadPools:
    """One layer's K and V as kernels take them to read. word_stride: words of four exponents a block.

    width: values of an element; 2 for pairs, int16, where the head has an even size.
    """

    k_values: Tensor
    v_values: Tensor
    k_exponents: Tensor
    v_exponents: Tensor
    word_stride: int
    scaled: bool
    width: int

    @classmethod
    def of(cls, k_pool: Tensor, v_pool: Tensor, pairs: bool) -> "ReadPools":
        if not fp8_pool.is_fp8(k_pool):
            return cls(k_pool, v_pool, k_pool, v_pool, 0, False, 1)
        words = fp8_pool.exponent_words_of(k_pool), fp8_pool.exponent_words_of(v_pool)
        if not pairs or k_pool.shape[3] % 2:
            return cls(k_pool, v_pool, *words, words[0].stride(0), True, 1)
        values = k_pool.view(torch.int16), v_pool.view(torch.int16)
        return cls(*values, *words, words[0].stride(0), True, 2)

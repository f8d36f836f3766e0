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


def exponent_words(k_pool: Tensor, v_pool: Tensor) -> tuple[Tensor, Tensor]:
    """The exponents of K and V as kernels take them to read; of pools without, the pools themselves."""
    if not fp8_pool.is_fp8(k_pool):
        return k_pool, v_pool
    return fp8_pool.exponent_words_of(k_pool), fp8_pool.exponent_words_of(v_pool)

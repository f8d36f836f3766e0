# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""Likelihoods on the device: exp((logit - peak) / temperature) in float64, and logits as ordered integers.

Owns the arithmetic that drawing and filtering share; knows no launch. Invariant: a likelihood is that of the
reference in float64 to 1e-13, and two logits have the same key if and only if they are equal.
"""

import torch
import triton
import triton.language as tl

SHIFTS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
"""Low bits of a logit's float32 form that are the same in all logits of its dtype and sign."""


# fmt: off
@triton.jit
def below(values, peak, shift: tl.constexpr):
    """values - peak as float64. For 16-bit logits within reach of the peak a float32 difference is exact."""
    return values.to(tl.float64) - peak.to(tl.float64) if shift == 0 else (values - peak).to(tl.float64)


@triton.jit
def slope_of(temperature):
    """log2(e) / temperature."""
    return 1.4426950408889634 / temperature.to(tl.float64)


@triton.jit
def exp2(x):
    """2 ** x for x <= 0, float64, relative error below 1e-13; exactly 0 below -1000.

    x = n + f with n whole and |f| <= 1/2; 2 ** f by its series to the 11th power, 2 ** n by its bits.
    """
    held = tl.maximum(x, -1000.0)
    shifted = held + 6755399441055744.0
    f = held - (shifted - 6755399441055744.0)
    p = f * 4.4455382718708116e-10 + 7.0549116208011233e-09
    p = p * f + 1.0178086009239699e-07
    p = p * f + 1.3215486790144309e-06
    p = p * f + 1.5252733804059840e-05
    p = p * f + 1.5403530393381609e-04
    p = p * f + 1.3333558146428443e-03
    p = p * f + 9.6181291076284772e-03
    p = p * f + 5.5504108664821580e-02
    p = p * f + 2.4022650695910072e-01
    p = p * f + 6.9314718055994531e-01
    p = p * f + 1.0
    n = (shifted.to(tl.int64, bitcast=True) & 0xFFFFFFFF).to(tl.int32).to(tl.int64)
    return tl.where(x < -1000.0, 0.0, p * ((n + 1023) << 52).to(tl.float64, bitcast=True))


@triton.jit
def sixteenths():
    """2 ** (j / 16) for j in 0..15."""
    return exp2(tl.arange(0, 16).to(tl.float64) * 0.0625 - 1.0) * 2.0


@triton.jit
def sum_likelihoods(values, peak, temperature, shift: tl.constexpr):
    """The sum of exp((values - peak) / temperature), float64, relative error below 1e-13, in half the
    instructions of exp2.

    x = k / 16 + g with k whole and |g| <= 1/32; 2 ** g by a polynomial that is within 1e-14 there, 2 ** (k /
    16) from a table and by its bits. Below 2 ** -1000 all terms are 2 ** -1000: the peak's is 1.
    """
    slope = slope_of(temperature)
    if shift == 0:
        x = tl.maximum(below(values, peak, shift) * slope, -1000.0)
    else:
        x = tl.maximum(values - peak, (-1000.0 / slope).to(tl.float32)).to(tl.float64) * slope
    shifted = x + 422212465065984.0
    g = x - (shifted - 422212465065984.0)
    p = g * 1.3333744338239965e-03 + 9.6183171405807653e-03
    p = p * g + 5.5504108660275872e-02
    p = p * g + 2.4022650691319414e-01
    p = p * g + 6.9314718055994529e-01
    k = shifted.to(tl.int64, bitcast=True).to(tl.int32)
    whole = tl.gather(sixteenths().to(tl.int64, bitcast=True), k & 15, 0)
    scale = (whole + ((k & -16).to(tl.int64) << 48)).to(tl.float64, bitcast=True)
    return tl.sum(scale + scale * (g * p), 0)


@triton.jit
def key_of(values, shift: tl.constexpr):
    """int32 in the order of values (float32, widened from logits of `shift`); both zeros have one key."""
    bits = tl.where(values == 0.0, 0, values.to(tl.int32, bitcast=True))
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> shift


@triton.jit
def lowest_key(shift: tl.constexpr):
    """The key of -inf."""
    return -2139095041 >> shift


@triton.jit
def value_of(key, shift: tl.constexpr):
    """The float32 value that has this key."""
    bits = (key << shift) | ((key >> 31) & ((1 << shift) - 1))
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
# fmt: on

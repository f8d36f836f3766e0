# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""Greedy and temperature sampling in two kernels, without sorting and without a float copy of the logits.

Owns the kernels and the counter-based random numbers on the device; knows no row's history. Invariant: a
token depends on its logits, its temperature and the pair (seed, output position) only, and is the token of
the reference in float64.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_kernels.triton_impl import machine

_CHUNK = 2048


# fmt: off
@triton.jit
def _below(values, peak):
    """values - peak as float32, which is exact for 16-bit logits within reach of the peak."""
    return values - peak


@triton.jit
def _slope(temperature):
    """log2(e) / temperature."""
    return 1.4426950408889634 / temperature.to(tl.float64)


@triton.jit
def _exp2(x):
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
def _chunk_kernel(
    peaks, ids, sums, logits, temperatures, vocab, logits_stride,
    chunks: tl.constexpr, chunk: tl.constexpr, overlap: tl.constexpr,
):
    """Greatest logit of a chunk, its lowest id, and the chunk's sum of exp((logit - greatest) / temperature).

    Grid (samples, chunks). The greatest counts as +inf where the chunk holds NaN or +inf.
    """
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    sample, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offsets = number * chunk + tl.arange(0, chunk)
    mask = offsets < vocab
    values = tl.load(logits + sample * logits_stride + offsets, mask=mask, other=float("-inf")).to(tl.float32)
    bad = tl.max(((values != values) | (values == float("inf"))).to(tl.int32), 0)
    peak = tl.where(bad > 0, float("inf"), tl.max(values, 0))
    at = sample * chunks + number
    tl.store(peaks + at, peak)
    tl.store(ids + at, tl.min(tl.where(values == peak, offsets, vocab), 0))
    temperature = tl.load(temperatures + sample)
    if (temperature > 0) & (bad == 0) & (peak > float("-inf")):
        tl.store(sums + at, tl.sum(_exp2(_below(values, peak).to(tl.float64) * _slope(temperature)), 0))
    else:
        tl.store(sums + at, 0.0)


@triton.jit
def _mix(state):
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def _uniform(seed, position):
    """SplitMix64's finalizer twice over the pair; 53 bits in [0, 1). The reference is gpu_worker.sampler."""
    state = _mix(seed.to(tl.uint64) + 0x9E3779B97F4A7C15)
    state = _mix(state + (position + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)
    return (state >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _draw_kernel(
    tokens, last_tokens, peaks, ids, sums, logits, temperatures, seeds, positions, sample_rows,
    vocab, logits_stride, chunks: tl.constexpr, block_c: tl.constexpr, chunk: tl.constexpr,
    overlap: tl.constexpr,
):
    """Joins the chunks of one sample and draws inside the chunk that the random number falls in."""
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    sample = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, block_c)
    used = numbers < chunks
    peak_of = tl.load(peaks + sample * chunks + numbers, mask=used, other=float("-inf"))
    peak = tl.max(peak_of, 0)
    good = (peak > float("-inf")) & (peak < float("inf"))
    lowest = tl.load(ids + sample * chunks + numbers, mask=used, other=vocab)
    token = tl.min(tl.where(peak_of == peak, lowest, vocab), 0)
    temperature = tl.load(temperatures + sample)
    if good & (temperature > 0):
        slope = _slope(temperature)
        mass = tl.load(sums + sample * chunks + numbers, mask=used, other=0.0)
        mass = mass * _exp2(_below(peak_of, peak).to(tl.float64) * slope)
        until = tl.cumsum(mass, 0)
        draw = _uniform(tl.load(seeds + sample), tl.load(positions + sample).to(tl.int64))
        target = draw * tl.sum(mass, 0)
        last = tl.max(tl.where(mass > 0, numbers, 0), 0)
        number = tl.minimum(tl.sum((until <= target).to(tl.int32), 0), last)
        before = tl.max(tl.where(numbers < number, until, 0.0), 0)
        inside = tl.arange(0, chunk)
        mask = number * chunk + inside < vocab
        line = logits + sample * logits_stride + number * chunk
        values = tl.load(line + inside, mask=mask, other=float("-inf")).to(tl.float32)
        weights = _exp2(_below(values, peak).to(tl.float64) * slope)
        passed = tl.sum((before + tl.cumsum(weights, 0) <= target).to(tl.int32), 0)
        token = number * chunk + tl.minimum(passed, tl.max(tl.where(weights > 0, inside, 0), 0))
    tl.store(tokens + sample, tl.where(good, token, -1))
    tl.store(last_tokens + tl.load(sample_rows + sample), tl.where(good, token, 0).to(tl.int64))
# fmt: on


def draw_tokens(
    logits: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    sample_rows: Tensor,
    last_tokens: Tensor,
    out: Tensor,
) -> None:
    """Draws one token a line of logits [S, vocab] into out [S] int32 and last_tokens[sample_rows] int64.

    temperatures [S] float32, 0 is greedy (lowest id among equals); seeds [S] int64 (the bits of a u64);
    positions [S] int32: output positions; sample_rows [S] int32. A line that holds NaN or +inf, or only
    -inf, gets -1 in out and 0 in last_tokens.
    """
    samples, vocab = logits.shape
    chunks, overlap = triton.cdiv(vocab, _CHUNK), machine.overlaps(logits.device)
    peaks = logits.new_empty((samples, chunks), dtype=temperatures.dtype)
    ids = out.new_empty((samples, chunks))
    sums = logits.new_empty((samples, chunks), dtype=torch.float64)
    _chunk_kernel[(samples, chunks)](
        peaks,
        ids,
        sums,
        logits,
        temperatures,
        vocab,
        logits.stride(0),
        chunks,
        _CHUNK,
        overlap,
        num_warps=4,
        **machine.launch_options(overlap),
    )
    _draw_kernel[(samples,)](
        out,
        last_tokens,
        peaks,
        ids,
        sums,
        logits,
        temperatures,
        seeds,
        positions,
        sample_rows,
        vocab,
        logits.stride(0),
        chunks,
        triton.next_power_of_2(chunks),
        _CHUNK,
        overlap,
        num_warps=8,
        **machine.launch_options(overlap),
    )

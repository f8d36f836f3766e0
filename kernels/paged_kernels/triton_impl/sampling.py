# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""Sampling in two kernels, without sorting and without a float copy of the logits.

Owns the kernels and the counter-based random numbers on the device; knows no row's history. Invariant: a
token depends on its logits, its temperature and filters and the pair (seed, output position) only, and is
the token of the reference in float64.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_kernels.triton_impl import filtering, machine
from paged_kernels.triton_impl.filtering import draw_among_few, is_filtered, sum_kept
from paged_kernels.triton_impl.likelihood import (
    SHIFTS,
    below,
    exp2,
    key_of,
    lowest_key,
    slope_of,
    sum_likelihoods,
)

_CHUNK = 2048
_CHUNK_WARPS = 2


# fmt: off
@triton.jit
def _filters(filters, sample, vocab):
    """(top_p, min_p, top_k) of a sample, and whether any of them leaves something out."""
    top_p, min_p = tl.load(filters + 3 * sample), tl.load(filters + 3 * sample + 1)
    top_k = tl.load(filters + 3 * sample + 2).to(tl.int32)
    return top_p, min_p, top_k, is_filtered(top_p, min_p, top_k, vocab)


@triton.jit
def _greater(a, b):
    """NaN where either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _chunk_kernel(
    peaks, ids, sums, spans, logits, temperatures, filters, vocab, logits_stride,
    chunks: tl.constexpr, chunk: tl.constexpr, span: tl.constexpr, shift: tl.constexpr,
    overlap: tl.constexpr,
):
    """Greatest logit of a chunk; of greedy rows its lowest id, of others the chunk's sum of exp((logit -
    greatest) / temperature), of filtered rows the greatest logit of each span too.

    Grid (samples, chunks). The greatest counts as +inf where the chunk holds NaN or +inf.
    """
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    sample, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offsets = number * chunk + tl.arange(0, chunk)
    mask = offsets < vocab
    values = tl.load(logits + sample * logits_stride + offsets, mask=mask, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperatures + sample)
    _, _, _, filtered = _filters(filters, sample, vocab)
    peak = tl.reduce(values, 0, _greater)
    peak = tl.where(peak != peak, float("inf"), peak)
    at = sample * chunks + number
    tl.store(peaks + at, peak)
    if temperature > 0:
        total = tl.zeros([], tl.float64)
        if (peak > float("-inf")) & (peak < float("inf")):
            total = sum_likelihoods(values, peak, temperature, shift)
        tl.store(sums + at, total)
        if filtered:
            per_chunk: tl.constexpr = chunk // span
            highest = tl.max(tl.reshape(values, [per_chunk, span]), 1)
            tl.store(spans + at * per_chunk + tl.arange(0, per_chunk), highest)
    else:
        tl.store(ids + at, tl.min(tl.where(values == peak, offsets, vocab), 0))


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
    tokens, last_tokens, peaks, ids, sums, spans, lines, found_ids, logits, temperatures, filters, seeds,
    positions, sample_rows, vocab, logits_stride,
    chunks: tl.constexpr, block_c: tl.constexpr, chunk: tl.constexpr, span: tl.constexpr,
    at_once: tl.constexpr, room: tl.constexpr, shift: tl.constexpr, overlap: tl.constexpr,
):
    """Joins the chunks of one sample and draws: inside the chunk that the random number falls in, or among
    the few tokens that filters keep.
    """
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    sample = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, block_c)
    used = numbers < chunks
    peaks += sample * chunks
    sums += sample * chunks
    logits += sample * logits_stride
    peak_of = tl.load(peaks + numbers, mask=used, other=float("-inf"))
    peak = tl.max(peak_of, 0)
    good = (peak > float("-inf")) & (peak < float("inf"))
    lowest = tl.load(ids + sample * chunks + numbers, mask=used, other=vocab)
    token = tl.min(tl.where(peak_of == peak, lowest, vocab), 0)
    temperature = tl.load(temperatures + sample)
    top_p, min_p, top_k, filtered = _filters(filters, sample, vocab)
    if good & (temperature > 0):
        slope = slope_of(temperature)
        mass = tl.load(sums + numbers, mask=used, other=0.0)
        mass = mass * exp2(below(peak_of, peak, shift) * slope)
        draw = _uniform(tl.load(seeds + sample), tl.load(positions + sample).to(tl.int64))
        token, last, least = -1, lowest_key(shift), draw * 0.0 + float("-inf")
        if filtered:
            per_row: tl.constexpr = chunks * (chunk // span)
            token, last, least = draw_among_few(
                found_ids + sample * room, lines + sample * per_row, logits, spans + sample * per_row,
                peak, slope, tl.sum(mass, 0), draw, top_p, min_p, top_k, vocab,
                block_c * (chunk // span), span, at_once, room, shift,
            )
            if token < 0:
                sum_kept(sums, logits, vocab, chunks, last, least, peak, slope, chunk, shift)
                mass = tl.load(sums + numbers, mask=used, other=0.0)
        if token < 0:
            until = tl.cumsum(mass, 0)
            target = draw * tl.sum(mass, 0)
            fullest = tl.max(tl.where(mass > 0, numbers, 0), 0)
            number = tl.minimum(tl.sum((until <= target).to(tl.int32), 0), fullest)
            before = tl.max(tl.where(numbers < number, until, 0.0), 0)
            inside = tl.arange(0, chunk)
            line = number * chunk + inside
            values = tl.load(logits + line, mask=line < vocab, other=float("-inf")).to(tl.float32)
            x = below(values, peak, shift) * slope
            weights = tl.where((key_of(values, shift) >= last) & (x >= least), exp2(x), 0.0)
            passed = tl.sum((before + tl.cumsum(weights, 0) <= target).to(tl.int32), 0)
            token = number * chunk + tl.minimum(passed, tl.max(tl.where(weights > 0, inside, 0), 0))
    tl.store(tokens + sample, tl.where(good, token, -1))
    tl.store(last_tokens + tl.load(sample_rows + sample), tl.where(good, token, 0).to(tl.int64))
# fmt: on


def _sizes(logits: Tensor) -> dict[str, Any]:
    """What both launches are compiled for."""
    overlap = machine.overlaps(logits.device)
    return {
        "chunks": triton.cdiv(logits.shape[1], _CHUNK),
        "chunk": _CHUNK,
        "span": filtering.SPAN,
        "shift": SHIFTS[logits.dtype],
        "overlap": overlap,
        **machine.launch_options(overlap),
    }


def draw_tokens(
    logits: Tensor,
    temperatures: Tensor,
    filters: Tensor,
    seeds: Tensor,
    positions: Tensor,
    sample_rows: Tensor,
    last_tokens: Tensor,
    out: Tensor,
) -> None:
    """Draws one token a line of logits [S, vocab] into out [S] int32 and last_tokens[sample_rows] int64.

    temperatures [S] float32, 0 is greedy (lowest id among equals); filters [S, 3] float64: top_p, min_p and
    top_k, 1, 0 and 0 are off; seeds [S] int64 (the bits of a u64); positions [S] int32: output positions;
    sample_rows [S] int32. A line that holds NaN or +inf, or only -inf, gets -1 in out and 0 in last_tokens.
    """
    samples, vocab = logits.shape
    chunks = triton.cdiv(vocab, _CHUNK)
    peaks = logits.new_empty((samples, chunks), dtype=torch.float32)
    ids = out.new_empty((samples, chunks))
    sums = logits.new_empty((samples, chunks), dtype=torch.float64)
    spans = peaks.new_empty((samples, chunks * (_CHUNK // filtering.SPAN)))
    sizes = _sizes(logits)
    _chunk_kernel[(samples, chunks)](
        peaks,
        ids,
        sums,
        spans,
        logits,
        temperatures,
        filters,
        vocab,
        logits.stride(0),
        num_warps=_CHUNK_WARPS,
        **sizes,
    )
    _draw_kernel[(samples,)](
        out,
        last_tokens,
        peaks,
        ids,
        sums,
        spans,
        out.new_empty(spans.shape),
        out.new_empty((samples, filtering.ROOM)),
        logits,
        temperatures,
        filters,
        seeds,
        positions,
        sample_rows,
        vocab,
        logits.stride(0),
        block_c=triton.next_power_of_2(chunks),
        at_once=filtering.SPANS_AT_ONCE,
        room=filtering.ROOM,
        num_warps=8,
        **sizes,
    )

"""Which product serves a step: by its tokens, the weight's sizes, the dtype and the device.

Owns the choice; knows no launch. Invariant: the choice depends on sizes, dtype, alignment and device only, so
that a step of one size always runs the same kernels.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from paged_kernels.triton_impl import machine, norms, small_linear, stream_linear
from paged_kernels.triton_impl.stream_linear import Stream

Weight = tuple[int, int, bool]
"""Input features, output features (of the result), and whether the weight holds gate and up."""

# Measured on an NVIDIA H200 with the weights of Qwen3-0.6B and Llama-3.1-8B by benchmarks/gpu_products.py, in
# benchmarks/gpu-notes.md; other devices of its compute capability take the same.
MOST_TOKENS = 256
"""Up to how many tokens a streamed product of a small weight is faster than the library's."""
MOST_STREAMED_TOKENS = 128
"""The same of a large weight."""
_MOST_SMALL = 1 << 23  # weights
_MOST_LINES = 128  # of a tile of tokens, of small weights
_MOST_PARTS = 2
_LEAST_BUSY = 0.72
_LEAST_BUSY_OF_MANY = 0.9  # from 65 tokens on: the library is faster where a quarter has nothing to do
_CAPABILITY = (9, 0)


def linear_for(tokens: int, weights: Sequence[Weight], dtype: torch.dtype) -> Callable[..., Tensor] | None:
    """small_linear, or None where products apart from their companions are faster."""
    if tokens <= small_linear.MOST_TOKENS and all(small_linear.choose_blocks(*weight) for weight in weights):
        return small_linear.small_linear
    return None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, K] times weight [N, K]: the product [T, N], or its parts [S, T, N], as stream_linear."""
    if _may_be_streamed(x, weight):
        stream = stream_for(x.shape[0], weight.shape[1], weight.shape[0], False, machine.units(x.device))
        if stream is not None:
            return stream_linear.stream_linear(x, weight, bias, stream)
    return F.linear(x, weight, bias)


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """silu(gate) * up [T, N / 2], where weight [N, K] packs gate and up, in x's dtype."""
    if bias is None and _may_be_streamed(x, weight):
        units = machine.units(x.device)
        stream = stream_for(x.shape[0], weight.shape[1], weight.shape[0], True, units)
        if stream is not None:
            return stream_linear.stream_linear(x, weight, None, stream)[0]
    return norms.silu_mul(linear(x, weight, bias), x.dtype)


def _may_be_streamed(x: Tensor, weight: Tensor) -> bool:
    """Whether stream_linear takes the dtype, the device and the places of both."""
    if x.dtype not in (torch.bfloat16, torch.float16) or machine.capability(x.device) != _CAPABILITY:
        return False
    return x.dtype == weight.dtype and _is_aligned(x) and _is_aligned(weight)


@lru_cache(maxsize=256)
def stream_for(tokens: int, in_features: int, out_features: int, gated: bool, units: int) -> Stream | None:
    """The shape for a weight, or None where the library's product is faster or no shape is even enough.

    units: multiprocessors.
    """
    lines = max(16, 1 << (tokens - 1).bit_length())
    if in_features * out_features <= _MOST_SMALL:
        shape = _small_stream(tokens, lines, in_features, out_features, gated, units)
        few = tokens <= MOST_TOKENS
        return shape if few and stream_linear.fits(shape, in_features, out_features) else None
    if tokens > MOST_STREAMED_TOKENS:
        return None
    shape = _gated_stream(lines) if gated else _plain_stream(lines, out_features, units)
    least = _LEAST_BUSY_OF_MANY if lines > 64 and not gated else _LEAST_BUSY
    even = least <= _busy(shape, out_features, units) <= 1
    return shape if even and stream_linear.fits(shape, in_features, out_features) else None


def _small_stream(
    tokens: int, lines: int, in_features: int, out_features: int, gated: bool, units: int
) -> Stream:
    """Equal parts of 512 input features or more, and programs for three quarters of the multiprocessors: more
    parts cost more, to be written and summed, than is won. Gate and up are not cut, but in tiles of the
    fewest features; from 129 tokens on, whose tiles two programs read, of twice as many.
    """
    block_k = 128 if in_features % 128 == 0 else 64
    if gated and lines > _MOST_LINES:
        return Stream(64, 1, _MOST_LINES, 64, 4, gated=True)
    if gated:
        return Stream(32, 1, lines, block_k, 4, gated=True)
    block_t = min(lines, _MOST_LINES)
    tiles = max(1, out_features // 64) * -(-tokens // block_t)
    chunks, most = in_features // block_k, min(in_features // 512, units * 3 // 4 // tiles)
    parts = max((parts for parts in range(1, most + 1) if chunks % parts == 0), default=1)
    return Stream(64, parts, block_t, block_k, 4)


def _gated_stream(lines: int) -> Stream:
    """For many tokens two programs a multiprocessor, one of which still multiplies where the other ends."""
    if lines > 32:
        return Stream(64, 1, lines, 64, 4, gated=True, paired=True)
    return Stream(128, 1, lines, 128, 8, gated=True)


def _plain_stream(lines: int, out_features: int, units: int) -> Stream:
    """At most two parts, for their sums cost more than tokens that more programs read."""
    whole, half = (
        Stream(rows, min(_MOST_PARTS, max(1, units * rows // out_features)), lines, 128, 4)
        for rows in (128, 64)
    )
    return half if _busy(whole, out_features, units) < _busy(half, out_features, units) <= 1 else whole


def _busy(shape: Stream, out_features: int, units: int) -> float:
    """Programs for each that the multiprocessors run at once."""
    programs = out_features // (shape.rows * (1 + shape.gated)) * shape.parts
    return programs / (units * (1 + shape.paired))


def _is_aligned(matrix: Tensor) -> bool:
    """Whether the copy engine can read it: rows of adjacent elements that begin at multiples of 16 bytes."""
    row, step = matrix.stride()
    return step == 1 and row * matrix.element_size() % 16 == 0 and matrix.data_ptr() % 16 == 0

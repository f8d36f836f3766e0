"""Which product serves a step: by its tokens, the weight's sizes, the dtype and the device.

Owns the choice; knows no launch. Invariant: the choice depends on sizes, dtype, alignment and device only, so
that a step of one size always runs the same kernels.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from paged_kernels.triton_impl import machine, norms, small_linear, split_linear, stream_linear
from paged_kernels.triton_impl.split_linear import Shape
from paged_kernels.triton_impl.stream_linear import Stream

Weight = tuple[int, int, bool]
"""Input features, output features (of the result), and whether the weight holds gate and up."""

MOST_TOKENS = 256
"""Up to how many tokens split_linear is faster than the library's product."""

# (most tokens, most weights, shape for wide weights, shape for others); wide: _WIDE times as many output as
# input features. Measured on an NVIDIA H200 with the weights of Qwen3-0.6B by benchmarks/gpu_products.py, see
# benchmarks/gpu-notes.md; other devices of its compute capability take the same. 2^23 weights are what two
# programs of 64 x 512 on each multiprocessor hold at once.
_WIDE = 4
_SHAPES = (
    (16, 1 << 23, Shape(64, 256, 2, 16, 4, 4, held=True), Shape(64, 256, 2, 16, 4, 4, held=True)),
    (32, 1 << 23, Shape(64, 256, 4, 32, 4, 4, held=True), Shape(64, 256, 2, 32, 4, 4, held=True)),
    (64, 1 << 23, Shape(64, 256, 2, 64, 4, 4, held=True), Shape(64, 256, 2, 64, 4, 4, held=True)),
    (128, 1 << 23, Shape(64, 64, 16, 128, 4, 5, held=False), Shape(64, 256, 2, 128, 4, 4, held=True)),
    (224, 1 << 22, Shape(128, 64, 16, 128, 8, 4, held=False), Shape(128, 64, 8, 128, 8, 4, held=False)),
    (256, 1 << 22, Shape(64, 64, 16, 128, 4, 5, held=False), Shape(128, 64, 8, 128, 8, 4, held=False)),
)
_CAPABILITY = (9, 0)
# Weights of more than 2^23 are streamed, by programs of all multiprocessors, or nearly all, of equal work.
# Measured as above, with the weights of Llama-3.1-8B.
MOST_STREAMED_TOKENS = 128
_FEWEST_STREAMED = (1 << 23) + 1
_MOST_PARTS = 2
_LEAST_BUSY = 0.72
_LEAST_BUSY_OF_MANY = 0.9  # from 65 tokens on: the library is faster where a quarter has nothing to do


def linear_for(tokens: int, weights: Sequence[Weight], dtype: torch.dtype) -> Callable[..., Tensor] | None:
    """small_linear, or None where products apart from their companions are faster."""
    if tokens <= small_linear.MOST_TOKENS and all(small_linear.choose_blocks(*weight) for weight in weights):
        return small_linear.small_linear
    return None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, K] times weight [N, K]: the product [T, N], or its parts [S, T, N] as split_linear gives them."""
    if _may_be_cut(x, weight):
        sizes = (x.shape[0], weight.shape[1], weight.shape[0])
        shape = shape_for(*sizes)
        if shape is not None:
            return split_linear.split_linear(x, weight, bias, shape)
        stream = stream_for(*sizes, False, machine.units(x.device))
        if stream is not None:
            return stream_linear.stream_linear(x, weight, bias, stream)
    return F.linear(x, weight, bias)


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """silu(gate) * up [T, N / 2], where weight [N, K] packs gate and up, in x's dtype."""
    if bias is None and _may_be_cut(x, weight):
        units = machine.units(x.device)
        stream = stream_for(x.shape[0], weight.shape[1], weight.shape[0], True, units)
        if stream is not None:
            return stream_linear.stream_linear(x, weight, None, stream)[0]
    return norms.silu_mul(linear(x, weight, bias), x.dtype)


def _may_be_cut(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels that cut products take the dtype, the device and the places of both."""
    if x.dtype not in (torch.bfloat16, torch.float16) or machine.capability(x.device) != _CAPABILITY:
        return False
    return x.dtype == weight.dtype and _is_aligned(x) and _is_aligned(weight)


@lru_cache(maxsize=256)
def stream_for(tokens: int, in_features: int, out_features: int, gated: bool, units: int) -> Stream | None:
    """The shape for a large weight, or None where the library's product is faster or no shape is even enough.

    units: multiprocessors.
    """
    if tokens > MOST_STREAMED_TOKENS or in_features * out_features < _FEWEST_STREAMED:
        return None
    lines = max(16, 1 << (tokens - 1).bit_length())
    shape = _gated_stream(lines) if gated else _plain_stream(lines, out_features, units)
    least = _LEAST_BUSY_OF_MANY if lines > 64 and not gated else _LEAST_BUSY
    even = least <= _busy(shape, out_features, units) <= 1
    return shape if even and stream_linear.fits(shape, in_features, out_features) else None


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


def shape_for(tokens: int, in_features: int, out_features: int) -> Shape | None:
    """The shape for a product in a 16-bit dtype, or None where the library's is faster or no shape fits."""
    if tokens > MOST_TOKENS:
        return None
    is_wide = out_features >= _WIDE * in_features
    for most_tokens, most_weights, wide, narrow in _SHAPES:
        if tokens <= most_tokens:
            shape = wide if is_wide else narrow
            few = in_features * out_features <= most_weights
            return shape if few and split_linear.fits(shape, in_features, out_features) else None
    return None


def _is_aligned(matrix: Tensor) -> bool:
    """Whether the copy engine can read it: rows of adjacent elements that begin at multiples of 16 bytes."""
    row, step = matrix.stride()
    return step == 1 and row * matrix.element_size() % 16 == 0 and matrix.data_ptr() % 16 == 0

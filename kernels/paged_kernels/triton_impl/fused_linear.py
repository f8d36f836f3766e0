"""Which product serves a step: by its tokens, the weight's sizes, the dtype and the device.

Owns the choice; knows no launch. Invariant: the choice depends on sizes, dtype, alignment and device only, so
that a step of one size always runs the same kernels.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from paged_kernels.triton_impl import machine, small_linear, split_linear
from paged_kernels.triton_impl.split_linear import Shape

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


def linear_for(tokens: int, weights: Sequence[Weight], dtype: torch.dtype) -> Callable[..., Tensor] | None:
    """small_linear, or None where products apart from their companions are faster."""
    if tokens <= small_linear.MOST_TOKENS and all(small_linear.choose_blocks(*weight) for weight in weights):
        return small_linear.small_linear
    return None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, K] times weight [N, K]: the product [T, N], or its parts [S, T, N] as split_linear gives them."""
    if x.dtype in (torch.bfloat16, torch.float16) and machine.capability(x.device) == _CAPABILITY:
        shape = shape_for(x.shape[0], weight.shape[1], weight.shape[0])
        if shape is not None and _is_aligned(x) and _is_aligned(weight):
            return split_linear.split_linear(x, weight, bias, shape)
    return F.linear(x, weight, bias)


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

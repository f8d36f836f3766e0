"""Which fused product serves a step: by its tokens, and by whether every weight of a layer fits it.

Owns the choice; knows no launch. Invariant: the choice depends on sizes and dtype only, so that a step of one
size always runs the same kernels.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paged_kernels.triton_impl import mid_linear, small_linear

Weight = tuple[int, int, bool]
"""Input features, output features (of the result), and whether the weight holds gate and up."""


def linear_for(tokens: int, weights: Sequence[Weight], dtype: torch.dtype) -> Callable[..., Tensor] | None:
    """small_linear, mid_linear, or None where the library's product with its companions is faster."""
    if tokens <= small_linear.MOST_TOKENS and all(small_linear.choose_blocks(*weight) for weight in weights):
        return small_linear.small_linear
    halves = dtype in (torch.bfloat16, torch.float16)
    if halves and tokens <= mid_linear.MOST_TOKENS and all(mid_linear.choose_blocks(*w) for w in weights):
        return mid_linear.mid_linear
    return None

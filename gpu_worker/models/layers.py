"""The arithmetic between the matrix products: RMSNorm, rotary embedding, gated activation.

Owns a few functions on flat tensors of tokens; knows no model and no pool. Invariant: each token's result
depends on that token alone, so that no batch changes it beyond rounding.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich, arXiv 1910.07467) over the last dimension; weight [n]."""
    return F.rms_norm(hidden, weight.shape, weight, eps)


def head_norm(heads: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of each head: heads [T, H, D], weight [H, D] (q and k heads carry different weights)."""
    return F.rms_norm(heads, heads.shape[-1:], None, eps).mul_(weight)


def spread_rotation(rows: Tensor) -> tuple[Tensor, Tensor]:
    """cos and signed sin [T, 1, D], as `rotate` takes them, from rows [T, 2, D/2] of the rotary table."""
    cos, sin = rows[:, 0:1], rows[:, 1:2]
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of heads [T, H, D], halves paired (i, i + D/2); cos, sin from `spread_rotation`."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), -1)
    return (heads * cos).addcmul_(swapped, sin)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of the packed [T, 2 * I]; returns [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)

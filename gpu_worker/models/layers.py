"""The arithmetic between the matrix products: RMSNorm, rotary embedding, gated activation, soft cap.

Owns a few functions on flat tensors of tokens; knows no model and no pool. Invariant: each token's result
depends on that token alone, so that no batch changes it beyond rounding.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich, arXiv 1910.07467) over the last dimension; weight [n].

    A weight wider than hidden (float32 beside 16 bits) is applied before rounding.
    """
    if weight.dtype == hidden.dtype:
        return F.rms_norm(hidden, weight.shape, weight, eps)
    return F.rms_norm(hidden.to(weight.dtype), weight.shape, weight, eps).to(hidden.dtype)


def head_norm(heads: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of each head: heads [T, H, D], weight [H, D] (q and k heads carry different weights)."""
    if weight.dtype == heads.dtype:
        return F.rms_norm(heads, heads.shape[-1:], None, eps).mul_(weight)
    return F.rms_norm(heads.to(weight.dtype), heads.shape[-1:], None, eps).mul_(weight).to(heads.dtype)


def spread_rotation(rows: Tensor) -> tuple[Tensor, Tensor]:
    """cos and signed sin [T, 1, D], as `rotate` takes them, from rows [T, 2, D/2] of the rotary table."""
    cos, sin = rows[:, 0:1], rows[:, 1:2]
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of heads [T, H, D], halves paired (i, i + R/2); cos, sin [T, 1, R] from
    `spread_rotation`. Dimensions from R on stay as they are.
    """
    size = cos.shape[-1]
    if size < heads.shape[-1]:
        return torch.cat((rotate(heads[..., :size], cos, sin), heads[..., size:]), -1)
    half = size // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), -1)
    return (heads * cos).addcmul_(swapped, sin)


def gated(gate_up: Tensor, activation: str = "silu") -> Tensor:
    """activation(gate) * up of the packed [T, 2 * I]; returns [T, I]. activation: "silu" or "gelu_tanh"."""
    gate, up = gate_up.chunk(2, dim=-1)
    active = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return active.mul_(up)


def soft_cap(values: Tensor, cap: float) -> Tensor:
    """cap * tanh(values / cap), or the values where cap is 0 (Gemma 2, arXiv 2408.00118)."""
    return values if cap == 0 else torch.tanh(values / cap) * cap

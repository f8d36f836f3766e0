"""The fused operations in plain PyTorch, for parity: each does what its Triton namesake does.

Owns the meaning of every fused operation; knows no launch. Invariant: arithmetic is float64 throughout, with
one rounding to the result's dtype, so a difference is the kernel's.
"""

import torch
from torch import Tensor

from paged_kernels import torch_impl


def add_rms_norm(
    hidden: Tensor, delta: Tensor | None, weight: Tensor, eps: float, index: Tensor | None = None
) -> Tensor:
    """See triton_impl.norms.add_rms_norm; the sum is rounded to hidden's dtype before the norm."""
    total = hidden if delta is None else (hidden.double() + delta.double()).to(hidden.dtype)
    if index is not None:
        return rms_norm(total[index.long()], weight, eps)
    hidden.copy_(total)
    return rms_norm(total, weight, eps)


def rms_norm(values: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension; weight broadcasts."""
    wide = values.double()
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * scale * weight.double()).to(values.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See triton_impl.norms.silu_mul."""
    gate, up = gate_up.double().chunk(2, -1)
    return (gate * gate.sigmoid() * up).to(gate_up.dtype)


def rotate_store(
    qkv: Tensor,
    gains: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    """See triton_impl.rotate_store.rotate_store."""
    kv_heads, head_dim = k_pool.shape[2:]
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    rotating = heads[:, : heads.shape[1] - kv_heads].double()
    if gains is not None:
        rotating = rms_norm(rotating, gains, eps)
    first, second = rotating.chunk(2, -1)
    cos, sin = cos_sin[positions.long()].double().unbind(1)
    cos, sin = cos[:, None], sin[:, None]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(qkv.dtype)
    query_heads = heads.shape[1] - 2 * kv_heads
    torch_impl.store_kvcache(
        rotated[:, query_heads:], heads[:, query_heads + kv_heads :], k_pool, v_pool, slot_mapping
    )
    heads[:, :query_heads] = rotated[:, :query_heads]
    return heads[:, :query_heads]


def small_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    gains: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    into: Tensor | None = None,
) -> Tensor:
    """See triton_impl.small_linear.small_linear."""
    wide = x.double() if gains is None else rms_norm(x.double(), gains, eps)
    product = wide @ weight.double().T
    if bias is not None:
        product += bias.double()
    if gated:
        product = silu_mul(product)
    if into is None:
        return product.to(x.dtype)
    return into.copy_(into.double() + product)


def expert_blocks(x: Tensor, ids: Tensor, shares: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """See triton_impl.experts.expert_blocks; float64."""
    parts = x.new_empty((ids.shape[1], *x.shape), dtype=torch.float64)
    for token, (chosen, weights) in enumerate(zip(ids.tolist(), shares.tolist(), strict=True)):
        for place, (expert, share) in enumerate(zip(chosen, weights, strict=True)):
            gated = silu_mul(x[token].double() @ gate_up[expert].double().T)
            parts[place, token] = share * (gated @ down[expert].double().T)
    return parts

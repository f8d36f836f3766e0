# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""Norm of q and k heads, rotary embedding and the store of K and V, as one kernel over packed qkv.

Owns the kernel and its launch; knows nothing of blocks, only slots. Invariant: a negative slot writes nothing
to the pool, queries are rotated in place, and addresses are 64-bit.
"""

import triton
import triton.language as tl
from torch import Tensor

from paged_kernels.triton_impl import machine

_TILE_HEADS = 8


# fmt: off
@triton.jit
def _rotate_store_kernel(
    qkv, gains, cos_sin, positions, slot_mapping, k_pool, v_pool,
    block_size, block_stride, slot_stride, head_stride, eps,
    query_heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr,
    tile_heads: tl.constexpr, tile_half: tl.constexpr, normed: tl.constexpr,
    overlap: tl.constexpr,
):
    """Grid (tokens, head tiles). Heads are numbered as packed: queries, keys, values."""
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * tile_heads + tl.arange(0, tile_heads)[:, None]
    half: tl.constexpr = head_dim // 2
    dims = tl.arange(0, tile_half)[None, :]
    rotating_heads: tl.constexpr = query_heads + kv_heads
    mask = (heads < rotating_heads + kv_heads) & (dims < half)
    rotating = mask & (heads < rotating_heads)
    lines = qkv + token * ((rotating_heads + kv_heads) * head_dim) + heads * head_dim + dims
    first_raw = tl.load(lines, mask=mask, other=0.0)
    second_raw = tl.load(lines + half, mask=mask, other=0.0)
    first, second = first_raw.to(tl.float32), second_raw.to(tl.float32)
    if normed:
        squares = tl.sum(first * first + second * second, 1)
        scale = tl.rsqrt(squares / head_dim + eps)[:, None]
        gain = gains + heads * head_dim + dims
        first = first * scale * tl.load(gain, mask=rotating, other=0.0).to(tl.float32)
        second = second * scale * tl.load(gain + half, mask=rotating, other=0.0).to(tl.float32)
    angle = cos_sin + tl.load(positions + token).to(tl.int64) * head_dim + dims
    cos = tl.load(angle, mask=dims < half, other=0.0).to(tl.float32)
    sin = tl.load(angle + half, mask=dims < half, other=0.0).to(tl.float32)
    low = (first * cos - second * sin).to(qkv.dtype.element_ty)
    high = (second * cos + first * sin).to(qkv.dtype.element_ty)
    is_query = mask & (heads < query_heads)
    tl.store(lines, low, mask=is_query)
    tl.store(lines + half, high, mask=is_query)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot < 0:
        return
    target = slot // block_size * block_stride + slot % block_size * slot_stride
    into = k_pool + target + (heads - query_heads) * head_stride + dims
    is_key = rotating & (heads >= query_heads)
    tl.store(into, low, mask=is_key)
    tl.store(into + half, high, mask=is_key)
    into = v_pool + target + (heads - rotating_heads) * head_stride + dims
    is_value = mask & (heads >= rotating_heads)
    tl.store(into, first_raw, mask=is_value)
    tl.store(into + half, second_raw, mask=is_value)
# fmt: on


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
    """Rotates q and k of packed qkv [T, (Hq + 2 Hkv) * D] and stores k and v; returns q, a view [T, Hq, D].

    gains [Hq + Hkv, D]: weights of the heads' RMSNorm, or None for models without one. cos_sin [P, 2, D / 2],
    contiguous; positions [T] below P; pools [B, bs, Hkv, D]; slot_mapping [T], -1 stores nothing. Halves are
    paired (i, i + D / 2), as in Llama and Qwen (RoFormer, arXiv 2104.09864).
    """
    tokens, width = qkv.shape
    block_size, kv_heads, head_dim = k_pool.shape[1:]
    heads = width // head_dim
    query_heads, overlap = heads - 2 * kv_heads, machine.overlaps(qkv.device)
    _rotate_store_kernel[(tokens, triton.cdiv(heads, _TILE_HEADS))](
        qkv,
        qkv if gains is None else gains,
        cos_sin,
        positions,
        slot_mapping,
        k_pool,
        v_pool,
        block_size,
        *k_pool.stride()[:3],
        eps,
        query_heads,
        kv_heads,
        head_dim,
        _TILE_HEADS,
        triton.next_power_of_2(head_dim // 2),
        gains is not None,
        overlap,
        num_warps=4,
        **machine.launch_options(overlap),
    )
    return qkv.view(tokens, heads, head_dim)[:, :query_heads]

# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""Norm of q and k heads, rotary embedding and the store of K and V, as one kernel over packed qkv.

Owns the kernel and its launch; knows nothing of blocks, only slots. Invariant: a negative slot writes nothing
to the pool, queries are rotated in place, and addresses are 64-bit.
"""

import triton
import triton.language as tl
from torch import Tensor

from paged_kernels.triton_impl import fp8, machine

_TILE_HEADS = 8


@triton.jit
def _to_e4m3(low, high):
    """Both halves of heads [h, d] as bytes, and their exponents [h]."""
    low, high = low.to(tl.float32), high.to(tl.float32)
    greatest = tl.max(tl.maximum(fp8.magnitudes(low), fp8.magnitudes(high)), 1)
    powers = fp8.exponents_for(greatest)
    return fp8.to_e4m3(low, powers[:, None]), fp8.to_e4m3(high, powers[:, None]), powers.to(tl.uint8)


# fmt: off
@triton.jit
def _rotate_store_kernel(
    qkv, gains, cos_sin, positions, slot_mapping, k_pool, v_pool, k_exponents, v_exponents,
    block_size, block_stride, slot_stride, head_stride, eps,
    query_heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr,
    tile_heads: tl.constexpr, tile_half: tl.constexpr, normed: tl.constexpr,
    scaled: tl.constexpr, overlap: tl.constexpr,
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
    block, offset = slot // block_size * block_stride, slot % block_size
    target = block + offset * slot_stride
    low = tl.where(heads < rotating_heads, low, first_raw)
    high = tl.where(heads < rotating_heads, high, second_raw)
    is_key = rotating & (heads >= query_heads)
    is_value = mask & (heads >= rotating_heads)
    if scaled:
        low, high, powers = _to_e4m3(low, high)
        line = tl.program_id(1) * tile_heads + tl.arange(0, tile_heads)
        into = k_exponents + block + offset + (line - query_heads) * block_size
        tl.store(into, powers, mask=(line >= query_heads) & (line < rotating_heads))
        into = v_exponents + block + offset + (line - rotating_heads) * block_size
        tl.store(into, powers, mask=(line >= rotating_heads) & (line < rotating_heads + kv_heads))
    into = k_pool + target + (heads - query_heads) * head_stride + dims
    tl.store(into, low, mask=is_key)
    tl.store(into + half, high, mask=is_key)
    into = v_pool + target + (heads - rotating_heads) * head_stride + dims
    tl.store(into, low, mask=is_value)
    tl.store(into + half, high, mask=is_value)
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
    contiguous; positions [T] below P; pools [B, bs, Hkv, D], e4m3 too; slot_mapping [T], -1 stores nothing.
    Halves are paired (i, i + D / 2), as in Llama and Qwen (RoFormer, arXiv 2104.09864).
    """
    tokens, width = qkv.shape
    block_size, kv_heads, head_dim = k_pool.shape[1:]
    heads = width // head_dim
    query_heads, overlap = heads - 2 * kv_heads, machine.overlaps(qkv.device)
    pools = fp8.Pools.of(k_pool, v_pool)
    _rotate_store_kernel[(tokens, triton.cdiv(heads, _TILE_HEADS))](
        qkv,
        qkv if gains is None else gains,
        cos_sin,
        positions,
        slot_mapping,
        pools.k_bytes,
        pools.v_bytes,
        pools.k_exponents,
        pools.v_exponents,
        block_size,
        *k_pool.stride()[:3],
        eps,
        query_heads,
        kv_heads,
        head_dim,
        _TILE_HEADS,
        triton.next_power_of_2(head_dim // 2),
        gains is not None,
        pools.scaled,
        overlap,
        num_warps=4,
        **machine.launch_options(overlap),
    )
    return qkv.view(tokens, heads, head_dim)[:, :query_heads]

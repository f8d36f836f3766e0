# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""Norm of q and k heads, rotary embedding and the store of K and V, as one kernel over packed qkv.

Owns the kernel and its launch; knows nothing of blocks, only slots. Invariant: a negative slot writes nothing
to the pool, queries of a whole product are rotated in place, and addresses are 64-bit.
"""

import triton
import triton.language as tl
from torch import Tensor

from paged_kernels.triton_impl import fp8, machine
from paged_kernels.triton_impl.norms import count_parts, sum_parts

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
def _store_heads(
    low, high, dims, slot, k_pool, v_pool, k_exponents, v_exponents,
    block_size, block_stride, slot_stride, head_stride,
    query_heads: tl.constexpr, kv_heads: tl.constexpr, half: tl.constexpr, tile_heads: tl.constexpr,
    scaled: tl.constexpr,
):
    """Writes this program's keys and values, both halves [tile_heads, dims], to their slot; no queries."""
    rotating_heads: tl.constexpr = query_heads + kv_heads
    line = tl.program_id(1) * tile_heads + tl.arange(0, tile_heads)
    is_key = (line >= query_heads) & (line < rotating_heads)
    is_value = (line >= rotating_heads) & (line < rotating_heads + kv_heads)
    block, offset = slot // block_size * block_stride, slot % block_size
    if scaled:
        low, high, powers = _to_e4m3(low, high)
        lines = block + offset + line * block_size
        tl.store(k_exponents + lines - query_heads * block_size, powers, mask=is_key)
        tl.store(v_exponents + lines - rotating_heads * block_size, powers, mask=is_value)
    target = block + offset * slot_stride
    into = k_pool + target + (line - query_heads)[:, None] * head_stride + dims
    mask = is_key[:, None] & (dims < half)
    tl.store(into, low, mask=mask)
    tl.store(into + half, high, mask=mask)
    into = v_pool + target + (line - rotating_heads)[:, None] * head_stride + dims
    mask = is_value[:, None] & (dims < half)
    tl.store(into, low, mask=mask)
    tl.store(into + half, high, mask=mask)


@triton.jit
def _rotate_store_kernel(
    query, qkv, gains, cos_sin, positions, slot_mapping, k_pool, v_pool, k_exponents, v_exponents,
    query_stride, part_stride, block_size, block_stride, slot_stride, head_stride, eps,
    query_heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr,
    tile_heads: tl.constexpr, tile_half: tl.constexpr, normed: tl.constexpr,
    parts: tl.constexpr, scaled: tl.constexpr, overlap: tl.constexpr, settles: tl.constexpr,
):
    """Grid (tokens, head tiles). Heads are numbered as packed: queries, keys, values.

    Positions, slots and gains are read before the wait: no kernel that overlaps with this one writes them.
    """
    if overlap and not settles:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * tile_heads + tl.arange(0, tile_heads)[:, None]
    half: tl.constexpr = head_dim // 2
    dims = tl.arange(0, tile_half)[None, :]
    rotating_heads: tl.constexpr = query_heads + kv_heads
    mask = (heads < rotating_heads + kv_heads) & (dims < half)
    rotating = mask & (heads < rotating_heads)
    angle = cos_sin + tl.load(positions + token).to(tl.int64) * head_dim + dims
    cos = tl.load(angle, mask=dims < half, other=0.0)
    sin = tl.load(angle + half, mask=dims < half, other=0.0)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    first_gain, second_gain = cos, sin
    if normed:
        first_gain = tl.load(gains + heads * head_dim + dims, mask=rotating, other=0.0)
        second_gain = tl.load(gains + heads * head_dim + dims + half, mask=rotating, other=0.0)
    if overlap:
        tl.extra.cuda.gdc_wait()
        if settles:
            tl.extra.cuda.gdc_launch_dependents()
    lines = qkv + token * ((rotating_heads + kv_heads) * head_dim) + heads * head_dim + dims
    first = sum_parts(lines, mask, part_stride, parts)
    second = sum_parts(lines + half, mask, part_stride, parts)
    first_raw, second_raw = first.to(query.dtype.element_ty), second.to(query.dtype.element_ty)
    if normed:
        squares = tl.sum(first * first + second * second, 1)
        scale = tl.rsqrt(squares / head_dim + eps)[:, None]
        first = first * scale * first_gain.to(tl.float32)
        second = second * scale * second_gain.to(tl.float32)
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    low = (first * cos - second * sin).to(query.dtype.element_ty)
    high = (second * cos + first * sin).to(query.dtype.element_ty)
    is_query = mask & (heads < query_heads)
    into = query + token * query_stride + heads * head_dim + dims
    tl.store(into, low, mask=is_query)
    tl.store(into + half, high, mask=is_query)
    if slot < 0:
        return
    low = tl.where(heads < rotating_heads, low, first_raw)
    high = tl.where(heads < rotating_heads, high, second_raw)
    _store_heads(
        low, high, dims, slot, k_pool, v_pool, k_exponents, v_exponents,
        block_size, block_stride, slot_stride, head_stride,
        query_heads, kv_heads, half, tile_heads, scaled,
    )
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
    settles: bool = False,
) -> Tensor:
    """Rotates q and k of packed qkv [T, (Hq + 2 Hkv) * D] and stores k and v; returns q, a view [T, Hq, D].

    qkv may also be the parts [S, T, ...] of the product, which stay as they are: q is then new, of cos_sin's
    dtype. gains [Hq + Hkv, D]: weights of the heads' RMSNorm, or None for models without one. cos_sin
    [P, 2, D / 2], contiguous; positions [T] below P; pools [B, bs, Hkv, D], e4m3 too; slot_mapping [T], -1
    stores nothing. Halves are paired (i, i + D / 2), as in Llama and Qwen (RoFormer, arXiv 2104.09864).

    settles: no kernel behind this one starts before all in front of it have ended; see machine.overlaps.
    """
    tokens, width = qkv.shape[-2:]
    block_size, kv_heads, head_dim = k_pool.shape[1:]
    heads = width // head_dim
    query_heads, overlap = heads - 2 * kv_heads, machine.overlaps(qkv.device)
    pools = fp8.Pools.of(k_pool, v_pool)
    query = qkv.view(tokens, heads, head_dim)[:, :query_heads] if qkv.dim() == 2 else None
    if query is None:
        query = cos_sin.new_empty((tokens, query_heads, head_dim))
    _rotate_store_kernel[(tokens, triton.cdiv(heads, _TILE_HEADS))](
        query,
        qkv,
        qkv if gains is None else gains,
        cos_sin,
        positions,
        slot_mapping,
        pools.k_bytes,
        pools.v_bytes,
        pools.k_exponents,
        pools.v_exponents,
        query.stride(0),
        tokens * width,
        block_size,
        *k_pool.stride()[:3],
        eps,
        query_heads,
        kv_heads,
        head_dim,
        _TILE_HEADS,
        triton.next_power_of_2(head_dim // 2),
        gains is not None,
        count_parts(qkv),
        pools.scaled,
        overlap,
        settles,
        num_warps=4,
        **machine.launch_options(overlap),
    )
    return query

# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""The kernel that joins what attention_kernel wrote for the splits of a long context.

Owns that arithmetic (Flash-Decoding, Dao, Haziza, Massa, Sizov 2023); knows no pool. Invariant: it finds the
splits that have work as attention_kernel does, and reads no other.
"""

import triton
import triton.language as tl

from paged_kernels.triton_impl.attention_kernel import CALL_ARGUMENTS, find_work

_JOIN_ARGUMENTS = CALL_ARGUMENTS[:8]


# fmt: off
@triton.jit
def _join_line(
    partial, partial_lse, base, line, active,
    head_dim: tl.constexpr, block_m: tl.constexpr, block_d: tl.constexpr, block_s: tl.constexpr,
):
    """The average of one line's splits, weighted by exp2 of their log2-sum-exp2: [block_d]."""
    dims = tl.arange(0, block_d)
    acc = tl.zeros([block_d], dtype=tl.float32)
    peak = tl.full([1], float("-inf"), dtype=tl.float32)
    total = tl.zeros([1], dtype=tl.float32)
    for start in range(0, active, block_s):
        parts = start + tl.arange(0, block_s)
        lines = (base + parts) * block_m + line
        lse = tl.load(partial_lse + lines, mask=parts < active, other=float("-inf"))
        mask = (parts < active)[:, None] & (dims < head_dim)[None, :]
        values = tl.load(partial + lines[:, None] * head_dim + dims[None, :], mask=mask, other=0.0)
        new_peak = tl.maximum(peak, tl.max(lse, 0))
        floor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(lse - floor)
        keep = tl.exp2(peak - floor)
        total = total * keep + tl.sum(weights, 0)
        acc = acc * keep + tl.sum(weights[:, None] * values, 0)
        peak = new_peak
    return acc / tl.where(total == 0.0, 1.0, total)


@triton.jit(do_not_specialize=_JOIN_ARGUMENTS)
def join_kernel(
    out, partial, partial_lse, cu_query_lens, context_lens,
    num_rows, kv_heads, group, min_len, max_len, splits, min_split_tiles, window,
    out_token_stride, out_head_stride,
    head_dim: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
    block_s: tl.constexpr, one_tile: tl.constexpr, overlap: tl.constexpr, windowed: tl.constexpr,
):
    """Join the splits that attention_kernel wrote for one line. Grid (tiles * kv_heads, lines a tile)."""
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
    tile, head, line = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads, tl.program_id(1)
    tile_tokens = block_m // group
    _, first_token, query_len, first, _, _, _, _, active = find_work(
        cu_query_lens, context_lens, tile, 0, num_rows, tile_tokens, min_len, max_len, splits,
        min_split_tiles, window, block_n, one_tile, windowed,
    )
    token = first + line // group
    if overlap:
        tl.extra.cuda.gdc_wait()
    if (token >= query_len) | (active <= 1):
        return
    base = (tile.to(tl.int64) * kv_heads + head) * splits
    result = _join_line(partial, partial_lse, base, line, active, head_dim, block_m, block_d, block_s)
    dims = tl.arange(0, block_d)
    offset = (first_token + token).to(tl.int64) * out_token_stride
    offset += (head * group + line % group) * out_head_stride
    tl.store(out + offset + dims, result.to(out.dtype.element_ty), mask=dims < head_dim)
# fmt: on

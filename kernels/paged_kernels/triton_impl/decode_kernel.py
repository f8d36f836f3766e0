# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""The device side of decodes by a work list: each program attends one KV head of a piece.

Owns where a piece's answer goes, and how partial results are joined (Flash-Decoding, Dao, Haziza, Massa,
Sizov 2023): by the last part of an answer to arrive. The list is work_kernels.py's, the arithmetic of a piece
attention_kernel.py's. Invariant: parts are joined in the order of their keys, so equal lists give equal bits.
"""

import triton
import triton.language as tl

from paged_kernels.triton_impl.attention_kernel import attend_span, load_query
from paged_kernels.triton_impl.work_kernels import PIECE_COLUMNS, RECORD_COLUMNS

_CALL_ARGUMENTS = ["kv_heads", "group", "block_size", "block_magic", "block_shift", "table_stride"]


# fmt: off
@triton.jit
def _join(
    out, partial, partial_lse, record, parts, head, kv_heads, group, out_head_stride,
    head_dim: tl.constexpr, block_h: tl.constexpr, block_d: tl.constexpr, block_s: tl.constexpr,
):
    """The average of the parts of one token's answer for one KV head, weighted by exp2 of their
    log2-sum-exp2, block_s parts at once. They were written by other programs: no older copy of them is read.
    """
    common, common_line = tl.load(record + 1), tl.load(record + 2)
    distance, own_line = tl.load(record + 3), tl.load(record + 4)
    group_head, dims = tl.arange(0, block_h), tl.arange(0, block_d)
    acc = tl.zeros([block_h, block_d], dtype=tl.float32)
    peak = tl.full([block_h], float("-inf"), dtype=tl.float32)
    total = tl.zeros([block_h], dtype=tl.float32)
    for start in range(0, parts, block_s):
        part = start + tl.arange(0, block_s)
        line = tl.where(part < common, common_line + part * distance, own_line + (part - common) * group)
        used = (part < parts)[:, None] & (group_head < group)[None, :]
        line = (line[:, None] + group_head[None, :]).to(tl.int64) * kv_heads + head
        lse = tl.load(partial_lse + line, mask=used, other=float("-inf"), cache_modifier=".cg")
        mask = used[:, :, None] & (dims < head_dim)[None, None, :]
        source = partial + line[:, :, None] * head_dim + dims[None, None, :]
        values = tl.load(source, mask=mask, other=0.0, cache_modifier=".cg")
        new_peak = tl.maximum(peak, tl.max(lse, 0))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights, keep = tl.exp2(lse - base[None, :]), tl.exp2(peak - base)
        total = total * keep + tl.sum(weights, 0)
        acc = acc * keep[:, None] + tl.sum(weights[:, :, None] * values, 0)
        peak = new_peak
    joined = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    into = (head * group + group_head) * out_head_stride
    mask = (group_head < group)[:, None] & (dims < head_dim)[None, :]
    tl.store(out + into[:, None] + dims[None, :], joined.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _arrive(
    out, partial, partial_lse, records, arrivals, tokens, rows, head, kv_heads, group, out_token_stride,
    out_head_stride, head_dim: tl.constexpr, block_m: tl.constexpr, block_h: tl.constexpr,
    block_d: tl.constexpr, block_s: tl.constexpr,
):
    """Counts a part of each answer that this program has stored, all by one operation: one after another they
    would take 1 us each. The last of an answer's parts to arrive joins them all, and leaves the count at 0.
    """
    places = tl.arange(0, block_m)
    listed = tl.load(tokens + places, mask=places < rows, other=0)
    expected = tl.load(records + listed * RECORD_COLUMNS, mask=places < rows, other=0)
    tl.debug_barrier()  # all threads have stored before one of them counts
    counts = arrivals + listed * kv_heads + head
    arrived = tl.atomic_add(counts, 1, mask=places < rows, sem="acq_rel") + 1
    complete = tl.sum(tl.where((places < rows) & (arrived == expected), 1 << places, 0), 0)
    for number in range(rows):
        if (complete >> number) & 1:
            token = tl.load(tokens + number)
            record = records + token * RECORD_COLUMNS
            _join(
                out + token.to(tl.int64) * out_token_stride, partial, partial_lse, record, tl.load(record),
                head, kv_heads, group, out_head_stride, head_dim, block_h, block_d, block_s,
            )
            tl.store(arrivals + token * kv_heads + head, 0)


@triton.jit(do_not_specialize=_CALL_ARGUMENTS)
def decode_kernel(
    out, partial, partial_lse, state, pieces, members, records, arrivals, query, k_pool, v_pool,
    k_exponents, v_exponents, block_tables, scale_log2, cap_log2, kv_heads, group,
    block_size, block_magic, block_shift, block_stride, slot_stride, head_stride, word_stride,
    table_stride, query_token_stride, query_head_stride, out_token_stride, out_head_stride,
    head_dim: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
    precision: tl.constexpr, upcast: tl.constexpr, overlap: tl.constexpr, capped: tl.constexpr,
    scaled: tl.constexpr, paired: tl.constexpr, settled: tl.constexpr,
    block_h: tl.constexpr, block_s: tl.constexpr,
):
    """One KV head of one piece. Grid (pieces * kv_heads,), of which the list may use fewer.

    Lines are (row of the piece, query head of the group), head fastest. settled: the list is read before the
    wait; see machine.overlaps.
    """
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
        if not settled:
            tl.extra.cuda.gdc_wait()
    piece, head = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads
    lines, dims = tl.arange(0, block_m), tl.arange(0, block_d)
    entry = pieces + piece * PIECE_COLUMNS
    used, row, rows = tl.load(state), tl.load(entry), tl.load(entry + 1)
    low, high, first_line = tl.load(entry + 2), tl.load(entry + 3), tl.load(entry + 4)
    tokens = tl.load(members + piece * block_m + lines // group)
    table = block_tables + row.to(tl.int64) * table_stride
    if overlap and settled:
        tl.extra.cuda.gdc_wait()
    if piece >= used:
        return
    line_mask, heads = lines < rows * group, head * group + lines % group
    tokens = tl.where(line_mask, tokens, 0).to(tl.int64)
    mask = line_mask[:, None] & (dims < head_dim)[None, :]
    offsets = (tokens * query_token_stride + heads * query_head_stride)[:, None] + dims[None, :]
    queries, odd, line_scale = load_query(query + offsets, mask, scale_log2, upcast, scaled, paired)
    result, lse = attend_span(
        queries, odd, line_scale, lines * 0 + high, low, low, high, high,
        table, k_pool, v_pool, head.to(tl.int64), head_stride, k_exponents, v_exponents,
        block_size, block_magic, block_shift, block_stride, slot_stride, word_stride, cap_log2, 0,
        head_dim, block_m, block_n, block_d, precision, False, capped, scaled, paired, True,
    )
    if first_line < 0:
        into = out + (tokens * out_token_stride + heads * out_head_stride)[:, None] + dims[None, :]
        tl.store(into, result.to(out.dtype.element_ty), mask=mask)
    else:
        at = (first_line + lines).to(tl.int64) * kv_heads + head
        tl.store(partial + at[:, None] * head_dim + dims[None, :], result, mask=mask)
        tl.store(partial_lse + at, lse, mask=line_mask)
        _arrive(
            out, partial, partial_lse, records, arrivals, members + piece * block_m, rows, head, kv_heads,
            group, out_token_stride, out_head_stride, head_dim, block_m, block_h, block_d, block_s,
        )
# fmt: on

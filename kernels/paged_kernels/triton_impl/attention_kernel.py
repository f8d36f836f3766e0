# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""The device side of paged attention: one kernel for rows of any length.

Owns the arithmetic on the device: online softmax over tiles of keys (FlashAttention, arXiv 2205.14135), keys
and values found through block tables (PagedAttention, arXiv 2309.06180). Knows nothing of launch shapes,
which paged_attention.py chooses, nor of how splits are joined (join_kernel.py). Invariant: a slot at or past
the end of a row's context is never loaded, so whatever it holds cannot reach a result.
"""

import triton
import triton.language as tl

from paged_kernels.triton_impl import fp8

# Arguments that change from call to call and must not cause a new compilation.
CALL_ARGUMENTS = [
    *("num_rows", "kv_heads", "group", "min_len", "max_len", "splits", "min_split_tiles", "window"),
    *("block_size", "block_magic", "block_shift", "table_stride"),
]


@triton.jit
def find_tile(cu_query_lens, tile, num_rows, tile_tokens, one_tile: tl.constexpr):
    """The row and the tile's number in it. Row r's tiles start at cu_query_lens[r] // tile_tokens + r."""
    row = tile
    number = tile * 0
    if not one_tile:
        row = tile * 0
        high = num_rows
        while high - row > 1:
            middle = (row + high) // 2
            if tl.load(cu_query_lens + middle) // tile_tokens + middle <= tile:
                row = middle
            else:
                high = middle
        number = tile - (tl.load(cu_query_lens + row) // tile_tokens + row)
    return row, number


# fmt: off
@triton.jit
def find_work(
    cu_query_lens, context_lens, tile, split, num_rows, tile_tokens, min_len, max_len, splits,
    min_split_tiles, window, block_n: tl.constexpr, one_tile: tl.constexpr, windowed: tl.constexpr,
):
    """Of a tile of queries: its row, the row's first token and number of queries, the tile's first query in
    the row and its position; the keys low..high of one split, the end of all its keys, and how many splits
    have work, 0 where the row is left to another launch.
    """
    row, number = find_tile(cu_query_lens, tile, num_rows, tile_tokens, one_tile)
    first_token = tl.load(cu_query_lens + row)
    query_len = tl.load(cu_query_lens + row + 1) - first_token
    first = number * tile_tokens
    context = tl.load(context_lens + row)
    start_position = context - query_len + first
    end = tl.minimum(start_position + tile_tokens, context)
    begin = start_position * 0
    if windowed:  # the first tile of keys that the first query sees
        begin = tl.maximum(start_position + 1 - window, 0) // block_n * block_n
    tiles = tl.cdiv(end - begin, block_n)
    each = tl.maximum(tl.cdiv(tiles, splits), min_split_tiles)
    idle = (query_len < min_len) | (query_len > max_len) | (first >= query_len)
    active = tl.where(idle, 0, tl.maximum(tl.cdiv(tiles, each), 1))
    low = begin + split * each * block_n
    high = tl.minimum(low + each * block_n, end)
    return row, first_token, query_len, first, start_position, low, high, end, active


@triton.jit
def _find_slots(
    start, end, table, block_size, block_magic, block_shift, block_n: tl.constexpr, masked: tl.constexpr
):
    """Of positions start..start + block_n: the block, 64-bit, and the offset in it.

    masked: those from end on are the last key's again, so that loads need no mask and no unused slot is read.
    """
    positions = start + tl.arange(0, block_n)
    if masked:
        positions = tl.minimum(positions, end - 1)
    index = ((positions.to(tl.int64) * block_magic) >> block_shift).to(tl.int32)
    block = tl.load(table + index).to(tl.int64)
    return block, positions - index * block_size


@triton.jit
def _load_keys_values(
    block, offset, k_head, v_head, block_stride, slot_stride, columns: tl.constexpr, block_c: tl.constexpr
):
    """Keys and values of these slots as [block_n, block_c]."""
    dims = tl.arange(0, block_c)
    slot_offset = block * block_stride + offset * slot_stride
    offsets = slot_offset[:, None] + dims[None, :]
    if columns < block_c:
        mask = (dims < columns)[None, :]
        keys = tl.load(k_head + offsets, mask=mask, other=0.0)
        values = tl.load(v_head + offsets, mask=mask, other=0.0)
    else:
        keys = tl.load(k_head + offsets)
        values = tl.load(v_head + offsets)
    return keys, values


@triton.jit
def _attend_tile(
    acc, odd, peak, total, unit, query, odd_query, line_scale, query_positions, start, end, table,
    k_head, v_head, k_exponents, v_exponents, first_exponent,
    block_size, block_magic, block_shift, block_stride, slot_stride, word_stride, cap_log2, window,
    columns: tl.constexpr, block_n: tl.constexpr, block_c: tl.constexpr, masked: tl.constexpr,
    precision: tl.constexpr, windowed: tl.constexpr, capped: tl.constexpr,
    scaled: tl.constexpr, paired: tl.constexpr,
):
    """One step of the online softmax: keys start..start + block_n, of which none from end on counts.

    scaled: the values' powers of two go into the weights, over the greatest of them so far, whose exponent is
    acc's unit; so weights stay within 0..1, and all products are of exact factors. paired: see fp8.py.
    """
    block, offset = _find_slots(start, end, table, block_size, block_magic, block_shift, block_n, masked)
    keys, values = _load_keys_values(
        block, offset, k_head, v_head, block_stride, slot_stride, columns, block_c
    )
    if paired:
        scores = tl.dot(query, tl.trans(fp8.even(keys, query.dtype)), input_precision=precision)
        scores = tl.dot(odd_query, tl.trans(fp8.odd(keys, query.dtype)), scores, input_precision=precision)
    else:
        keys, values = keys.to(query.dtype), values.to(query.dtype)
        scores = tl.dot(query, tl.trans(keys), input_precision=precision)
    scores = scores * line_scale
    if scaled:
        k_powers = fp8.load_exponents(k_exponents, block, first_exponent + offset, word_stride)
        v_powers = fp8.load_exponents(v_exponents, block, first_exponent + offset, word_stride)
        scores = scores * fp8.power_of_two(k_powers)[None, :]
    if capped:  # cap * tanh(x), in base 2; x is the scaled score over the cap
        scores = cap_log2 - 2 * cap_log2 / (tl.exp2(scores * 2.8853900817779268) + 1)
    if masked:
        positions = start + tl.arange(0, block_n)
        visible = (positions[None, :] <= query_positions[:, None]) & (positions < end)[None, :]
        if windowed:
            visible = visible & (positions[None, :] > query_positions[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - base[:, None])
    keep = tl.exp2(peak - base)
    total = total * keep + tl.sum(weights, 1)
    if scaled:
        new_unit = tl.maximum(unit, tl.max(v_powers, 0))
        weights = weights * fp8.power_of_two(tl.maximum(v_powers - new_unit + 127, 0))[None, :]
        keep = keep * fp8.power_of_two(tl.maximum(unit - new_unit + 127, 0))
        unit = new_unit
    weights = weights.to(query.dtype)
    if paired:
        acc = tl.dot(weights, fp8.even(values, query.dtype), acc * keep[:, None], input_precision=precision)
        odd = tl.dot(weights, fp8.odd(values, query.dtype), odd * keep[:, None], input_precision=precision)
    else:
        acc = tl.dot(weights, values, acc * keep[:, None], input_precision=precision)
    return acc, odd, new_peak, total, unit


@triton.jit
def attend_span(
    query, odd_query, line_scale, query_positions, low, unmasked, high, end, table,
    k_pool, v_pool, head, head_stride, k_exponents, v_exponents,
    block_size, block_magic, block_shift, block_stride, slot_stride, word_stride, cap_log2, window,
    head_dim: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
    precision: tl.constexpr, windowed: tl.constexpr, capped: tl.constexpr,
    scaled: tl.constexpr, paired: tl.constexpr, one_loop: tl.constexpr,
):
    """Keys low..high; up to unmasked every line sees all of them. Returns (average, log2-sum-exp2).

    one_loop: for rows bound by loads. A loop of its own for whole tiles saves comparisons, but the last tile
    then begins with two loads, one after the other, while nothing is computed.
    """
    columns: tl.constexpr = head_dim // 2 if paired else head_dim
    block_c: tl.constexpr = block_d // 2 if paired else block_d
    if paired and head_dim % 16 == 0:  # loads of 16 bytes: eight pairs
        block_stride, slot_stride = tl.multiple_of(block_stride, 8), tl.multiple_of(slot_stride, 8)
        head_stride = tl.multiple_of(head_stride, 8)
    k_head, v_head = k_pool + head * head_stride, v_pool + head * head_stride
    first_exponent = head.to(tl.int32) * block_size
    acc = tl.zeros([block_m, block_c], dtype=tl.float32)
    odd = tl.zeros([block_m, block_c], dtype=tl.float32)
    peak = tl.full([block_m], float("-inf"), dtype=tl.float32)
    total = tl.zeros([block_m], dtype=tl.float32)
    unit = low * 0 + 1
    if not one_loop:
        for start in tl.range(low, unmasked, block_n):
            acc, odd, peak, total, unit = _attend_tile(
                acc, odd, peak, total, unit, query, odd_query, line_scale, query_positions, start, end, table,
                k_head, v_head, k_exponents, v_exponents, first_exponent,
                block_size, block_magic, block_shift, block_stride, slot_stride, word_stride, cap_log2,
                window, columns, block_n, block_c, False, precision, windowed, capped, scaled, paired,
            )
        low = unmasked
    for start in tl.range(low, high, block_n):
        acc, odd, peak, total, unit = _attend_tile(
            acc, odd, peak, total, unit, query, odd_query, line_scale, query_positions, start, end, table,
            k_head, v_head, k_exponents, v_exponents, first_exponent,
            block_size, block_magic, block_shift, block_stride, slot_stride, word_stride, cap_log2, window,
            columns, block_n, block_c, True, precision, windowed, capped, scaled, paired,
        )
    divisor = tl.where(total == 0.0, 1.0, total)
    if scaled:
        divisor = divisor * fp8.power_of_two(254 - unit)
    if paired:
        acc = tl.reshape(tl.join(acc, odd), [block_m, block_d])
    return acc / divisor[:, None], peak + tl.log2(total)


@triton.jit
def load_query(
    source, mask, scale_log2, upcast: tl.constexpr, scaled: tl.constexpr, paired: tl.constexpr
):
    """Lines [m, d] for the product, or their even and odd dimensions, and what scores are multiplied by.

    scaled: float16, which holds every e4m3 value, over a power of two for each line, so that no number of
    bfloat16 is lost.
    """
    queries, line_scale = tl.load(source, mask=mask, other=0.0), scale_log2
    if upcast:
        queries = queries.to(tl.float32)
    elif scaled:
        wide = queries.to(tl.float32)
        greatest = tl.max(tl.abs(wide), 1).to(tl.int32, bitcast=True) >> 23
        exponents = tl.minimum(tl.maximum(greatest, 1), 253)
        queries = (wide * fp8.power_of_two(254 - exponents)[:, None]).to(tl.float16)
        line_scale = (fp8.power_of_two(exponents) * scale_log2)[:, None]
    odd = queries
    if paired:
        queries, odd = tl.split(tl.reshape(queries, [queries.shape[0], queries.shape[1] // 2, 2]))
    return queries, odd, line_scale


@triton.jit(do_not_specialize=CALL_ARGUMENTS)
def attention_kernel(
    out, partial, partial_lse, query, k_pool, v_pool, k_exponents, v_exponents, block_tables, cu_query_lens,
    context_lens, scale_log2, cap_log2, num_rows, kv_heads, group, min_len, max_len, splits, min_split_tiles,
    window, block_size, block_magic, block_shift, block_stride, slot_stride, head_stride, word_stride,
    table_stride, query_token_stride, query_head_stride, out_token_stride, out_head_stride,
    head_dim: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
    one_tile: tl.constexpr, precision: tl.constexpr, upcast: tl.constexpr, overlap: tl.constexpr,
    windowed: tl.constexpr, capped: tl.constexpr, scaled: tl.constexpr, paired: tl.constexpr,
):
    """One tile of queries of one row (all query heads of one KV head) over one split of the row's keys.

    Grid (tiles * kv_heads, splits). Rows with fewer than min_len or more than max_len queries are left to
    another launch. The tile's block_m lines are (query token, query head of the group), head fastest.
    """
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
    tile, head, split = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads, tl.program_id(1)
    if not one_tile:  # the last tiles see most keys: start them first
        tile = tl.num_programs(0) // kv_heads - 1 - tile
    tile_tokens = block_m // group
    row, first_token, query_len, first, start_position, low, high, end, active = find_work(
        cu_query_lens, context_lens, tile, split, num_rows, tile_tokens, min_len, max_len, splits,
        min_split_tiles, window, block_n, one_tile, windowed,
    )
    table = block_tables + row.to(tl.int64) * table_stride
    if overlap:
        tl.extra.cuda.gdc_wait()
    if split >= active:
        return
    lines, dims = tl.arange(0, block_m), tl.arange(0, block_d)
    tokens = first + lines // group
    line_mask = (lines < tile_tokens * group) & (tokens < query_len)
    mask = line_mask[:, None] & (dims < head_dim)[None, :]
    heads, rows = head * group + lines % group, (first_token + tokens).to(tl.int64)
    offsets = (rows * query_token_stride + heads * query_head_stride)[:, None] + dims[None, :]
    queries, odd, line_scale = load_query(query + offsets, mask, scale_log2, upcast, scaled, paired)
    seen_by_all = 0 if windowed else (start_position + 1) // block_n * block_n
    unmasked = tl.maximum(tl.minimum(high, seen_by_all), low)
    result, lse = attend_span(
        queries, odd, line_scale, start_position + lines // group, low, unmasked, high, end,
        table, k_pool, v_pool, head.to(tl.int64), head_stride, k_exponents, v_exponents,
        block_size, block_magic, block_shift, block_stride, slot_stride, word_stride, cap_log2, window,
        head_dim, block_m, block_n, block_d, precision, windowed, capped, scaled, paired, one_tile,
    )
    if active == 1:
        into = out + (rows * out_token_stride + heads * out_head_stride)[:, None] + dims[None, :]
        tl.store(into, result.to(out.dtype.element_ty), mask=mask)
    else:
        base = ((tile.to(tl.int64) * kv_heads + head) * splits + split) * block_m
        tl.store(partial + (base + lines)[:, None] * head_dim + dims[None, :], result, mask=mask)
        tl.store(partial_lse + base + lines, lse, mask=line_mask)
# fmt: on

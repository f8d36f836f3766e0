# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""The device side of attention for rows of any length on compute capability 9.0.

Owns the arithmetic: online softmax over tiles of 128 keys as in FlashAttention-3 (Shah et al., 2024,
arXiv 2407.08608). One warp asks for keys and values (hopper_tiles.py); two groups of four warps have half of
a tile's lines each, and the matrix units multiply a group's next keys and its present values while it takes
exponentials. Knows nothing of launch shapes. Invariant: a value at or past the end of a row's context is
zero before it is multiplied, whatever its slot holds.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from paged_kernels.triton_impl.dependents import launch_dependents, wait_for_dependencies
from paged_kernels.triton_impl.hopper_tiles import (
    COUNT,
    MORE,
    as_tiles,
    ask_queries,
    barrier,
    clear_tail,
    find_tile,
    item_of,
    line_offsets,
    make_barriers,
    produce,
)


# fmt: off
@gluon.jit
def _power(x):
    """2^x as the device's unit gives it, results below 2^-126 as 0."""
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def _hold(total, name: gl.constexpr):
    """total, which is never negative; what follows in the program is not begun before it is known.

    ptxas moves the wait for products up, before the exponentials that were to run beside them. It does not
    move it past a barrier, and this one, of the group's own number, needs the exponentials' sum.
    """
    asm: gl.constexpr = (
        "{ .reg .pred p, q; .reg .f32 t; min.f32 t, $2, $3; setp.lt.f32 p, t, 0f00000000; "
        + "barrier.cta.red.or.pred q, " + name + ", 128, p; selp.f32 $0, 0f00000000, $2, q; mov.b32 $1, $3; }"
    )
    return gl.inline_asm_elementwise(asm, "=f,=f,f,f", [total], dtype=gl.float32, is_pure=False, pack=2)


@gluon.jit
def _weigh(
    scores, peak, total, positions, start, masked, scale_log2, left: gl.constexpr, dtype: gl.constexpr,
    part: gl.constexpr, hold: gl.constexpr,
):
    """Scores to weights over the new peak, as the left operand; what the sums so far are multiplied by.

    masked: some line sees not all of the keys. All lanes branch alike, so one loop over tiles of keys serves.
    """
    if masked:
        keys = start + gl.arange(0, 128, layout=gl.SliceLayout(0, scores.type.layout))
        scores = gl.where(keys[None, :] <= positions[:, None], scores, float("-inf"))
    highest = gl.maximum(peak, gl.max(scores, 1))
    base = gl.where(highest == float("-inf"), 0.0, highest * scale_log2)
    weights = _power(scores * scale_log2 - base[:, None])
    keep = _power(peak * scale_log2 - base)
    total = total * keep + gl.sum(weights, 1)
    if hold:
        total = _hold(total, "9" if part == 1 else "8")
    return gl.convert_layout(weights.to(dtype), left), highest, total, keep


@gluon.jit
def _consume(
    queries, keys, values, v_blocks, bars, query, out, lens, tile, scale_log2, strides, part: gl.constexpr,
    group: gl.constexpr, block_size: gl.constexpr, stages: gl.constexpr,
):
    """Half of the lines of every tile in its turn."""
    turn, done = tile[COUNT] * 0, tile[COUNT] * 0
    ask_queries(queries.index(part * 2), query, tile, strides, part, group)
    while tile[MORE] > 0:
        count = tile[COUNT]
        if count > 0:
            later = _attend(
                queries, keys, values, v_blocks, bars, query, out, lens, turn, tile, done, scale_log2,
                strides, part, group, block_size, stages,
            )
        else:
            later = find_tile(lens, item_of(turn + 1), 128 // group)
            async_copy.wait_group(0)
            ask_queries(queries.index(part * 2 + (turn + 1) % 2), query, later, strides, part, group)
        done += count
        turn += 1
        tile = later
    async_copy.wait_group(0)


@gluon.jit
def _finish(
    queries, acc, total, out, tile, strides, part: gl.constexpr, group: gl.constexpr, layout: gl.constexpr
):
    """The weighted average to out, by way of the shared memory of the lines themselves."""
    _query_token_stride, _query_head_stride, out_token_stride, out_head_stride = strides
    lines: gl.constexpr = queries.shape[0]
    head_dim: gl.constexpr = queries.shape[1]
    divisor = gl.convert_layout(gl.where(total == 0.0, 1.0, total), gl.SliceLayout(1, acc.type.layout))
    queries.store((acc / divisor[:, None]).to(out.dtype.element_ty))
    barrier()
    offsets, mask = line_offsets(
        tile, out_token_stride, out_head_stride, part, group, head_dim, lines, layout
    )
    gl.store(out + offsets, queries.load(layout), mask=mask)


@gluon.jit
def _attend(
    all_queries, keys, values, v_blocks, bars, query, out, lens, turn, tile, done, scale_log2, strides,
    part: gl.constexpr, group: gl.constexpr, block_size: gl.constexpr, stages: gl.constexpr,
):
    """Half of the tile's lines over all its keys, the last ones first. Returns the next tile."""
    k_bars, v_bars, k_free, v_free = bars
    _row, _first_token, _first, _query_len, start_position, context, _head, count, _more = tile
    queries = all_queries.index(part * 2 + turn % 2)
    lines: gl.constexpr = queries.shape[0]
    head_dim: gl.constexpr = queries.shape[1]
    warps: gl.constexpr = gl.num_warps()
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, 128, 16])
    sums_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, head_dim, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, sums_layout, 2)
    rows_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // head_dim, head_dim // 8], [warps, 1], [1, 0])
    async_copy.wait_group(0)
    fence_async_shared()
    barrier()
    line = part * lines + gl.arange(0, lines, layout=gl.SliceLayout(1, scores_layout))
    positions = start_position + line // group
    peak = gl.full([lines], float("-inf"), gl.float32, gl.SliceLayout(1, scores_layout))
    total = gl.full([lines], 0.0, gl.float32, gl.SliceLayout(1, scores_layout))
    zeros = gl.zeros([lines, 128], gl.float32, scores_layout)
    acc = gl.zeros([lines, head_dim], gl.float32, sums_layout)

    stage, phase = done % stages, done // stages & 1
    mbarrier.wait(k_bars.index(stage), phase)
    scores = warpgroup_mma(queries, keys.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
    later = find_tile(lens, item_of(turn + 1), 128 // group)
    ask_queries(all_queries.index(part * 2 + (turn + 1) % 2), query, later, strides, part, group)
    scores = warpgroup_mma_wait(num_outstanding=0, deps=[scores])
    barrier()
    mbarrier.arrive(k_free.index(stage), count=1)
    weights, peak, total, _keep = _weigh(
        scores, peak, total, positions, (count - 1) * 128, True, scale_log2, left, queries.dtype, part, False
    )
    mbarrier.wait(v_bars.index(stage), phase)
    if (context % block_size != 0) & (count * 128 > context):
        clear_tail(v_blocks, stage, context, block_size, head_dim, warps)
    seen_by_all = gl.minimum((start_position + 1) // 128, count - 1)
    for step in range(1, count):
        number = count - 1 - step
        acc, weights, peak, total = _step(
            queries, keys, values, bars, weights, acc, peak, total, positions, number * 128,
            number >= seen_by_all, done + step, scale_log2, zeros, left, part, stages,
        )
    last = done + count - 1
    mbarrier.wait(v_bars.index(last % stages), last // stages & 1)
    sums = warpgroup_mma(weights, values.index(last % stages), warpgroup_mma_init(acc), is_async=True)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=[sums])
    barrier()
    mbarrier.arrive(v_free.index(last % stages), count=1)
    _finish(queries, acc, total, out, tile, strides, part, group, rows_layout)
    return later


@gluon.jit
def _step(
    queries, keys, values, bars, weights, acc, peak, total, positions, start, masked, step, scale_log2, zeros,
    left: gl.constexpr, part: gl.constexpr, stages: gl.constexpr,
):
    """The scores of keys from `start` on are multiplied out before the values of the tile before are."""
    k_bars, v_bars, k_free, v_free = bars
    stage, before = step % stages, (step - 1) % stages
    mbarrier.wait(k_bars.index(stage), step // stages & 1)
    scores = warpgroup_mma(queries, keys.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
    mbarrier.wait(v_bars.index(before), (step - 1) // stages & 1)
    sums = warpgroup_mma(weights, values.index(before), warpgroup_mma_init(acc), is_async=True)
    scores = warpgroup_mma_wait(num_outstanding=1, deps=[scores])
    barrier()
    mbarrier.arrive(k_free.index(stage), count=1)
    next_weights, peak, total, keep = _weigh(
        scores, peak, total, positions, start, masked, scale_log2, left, queries.dtype, part, True
    )
    acc = warpgroup_mma_wait(num_outstanding=0, deps=[sums])
    barrier()
    mbarrier.arrive(v_free.index(before), count=1)
    acc = acc * gl.convert_layout(keep, gl.SliceLayout(1, acc.type.layout))[:, None]
    return acc, next_weights, peak, total


@gluon.jit(do_not_specialize=["num_rows", "kv_heads", "table_stride", "nowhere"])
def hopper_kernel(
    out, query, k_pool, v_pool, block_tables, cu_query_lens, context_lens, scale_log2, num_rows, kv_heads,
    nowhere, table_stride, query_token_stride, query_head_stride, out_token_stride, out_head_stride,
    group: gl.constexpr, block_size: gl.constexpr, head_dim: gl.constexpr, stages: gl.constexpr,
    overlap: gl.constexpr,
):
    """Tiles of 128 lines (query token, query head of the group) of one row each, over all of the row's keys.

    Grid: any number of programs, which take the tiles by turns. k_pool and v_pool are descriptors of the
    pools as [slots, heads * head_dim] with boxes [block_size, 64]; nowhere is a slot past the pools'.
    """
    halves: gl.constexpr = head_dim // 64
    blocks: gl.constexpr = stages * halves * (128 // block_size)
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    if overlap:
        launch_dependents()
    queries = gl.allocate_shared_memory(query.dtype.element_ty, [4, 64, head_dim], layout)
    k_blocks = gl.allocate_shared_memory(query.dtype.element_ty, [blocks, block_size, 64], layout)
    v_blocks = gl.allocate_shared_memory(query.dtype.element_ty, [blocks, block_size, 64], layout)
    keys = as_tiles(k_blocks, stages, head_dim, layout)
    values = as_tiles(v_blocks, stages, head_dim, layout)
    bars = make_barriers(stages)
    lens = (cu_query_lens, context_lens, num_rows, kv_heads)
    tile = find_tile(lens, gl.program_id(0), 128 // group)
    strides = (query_token_stride, query_head_stride, out_token_stride, out_head_stride)
    if overlap:
        wait_for_dependencies()
    gl.warp_specialize(
        [
            (_consume, (
                queries, keys, values, v_blocks, bars, query, out, lens, tile, scale_log2, strides, 0, group,
                block_size, stages,
            )),
            (_consume, (
                queries, keys, values, v_blocks, bars, query, out, lens, tile, scale_log2, strides, 1, group,
                block_size, stages,
            )),
            (produce, (
                k_blocks, v_blocks, bars, k_pool, v_pool, block_tables, table_stride, lens, tile, nowhere,
                group, block_size, halves, stages,
            )),
        ],
        [4, 1],
        [232, 40],
    )
# fmt: on

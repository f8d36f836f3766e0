# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return, assignment"
"""The work of hopper_kernel's programs: which tile is whose, and how its keys, values and lines come.

Owns the order of tiles and the loads; knows no arithmetic. Invariant: all groups of warps of a program find
the same tiles in the same order, and every slot that a row lacks is zero or, in its last block, cleared by
clear_tail.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared, mbarrier, tma

# Triton 3.6 has other names for these than later ones.
barrier = getattr(gl, "thread_barrier", None) or gl.barrier
_RENAMED = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_fetch = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_ROWS_A_LANE = gl.constexpr(4)
COUNT, MORE = gl.constexpr(7), gl.constexpr(8)
"""Places in what find_tile gives."""


# fmt: off
@gluon.jit
def as_tiles(blocks, stages: gl.constexpr, head_dim: gl.constexpr, layout: gl.constexpr):
    """Blocks of 64 dimensions, one behind another, as `stages` tiles [128, head_dim]: the same bytes."""
    if _RENAMED:
        tiles = blocks.reinterpret(blocks.dtype, [stages, 128, head_dim], layout)
    else:
        tiles = blocks._reinterpret(blocks.dtype, [stages, 128, head_dim], layout)
    return tiles


@gluon.jit
def make_barriers(stages: gl.constexpr):
    """Of tiles of keys that have come, of values, and of both that two halves have done with."""
    k_bars = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    v_bars = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(stages):
        mbarrier.init(k_bars.index(stage), count=1)
        mbarrier.init(v_bars.index(stage), count=1)
        mbarrier.init(k_free.index(stage), count=2)
        mbarrier.init(v_free.index(stage), count=2)
    fence_async_shared()
    return k_bars, v_bars, k_free, v_free


@gluon.jit
def item_of(turn):
    """The number of this program's work in its turn: forwards and backwards by turns, so that who had the
    longest gets the shortest.
    """
    programs = gl.num_programs(0)
    place = gl.where(turn % 2 == 0, gl.program_id(0), programs - 1 - gl.program_id(0))
    return turn * programs + place


@gluon.jit
def find_tile(lens, item, tile_tokens: gl.constexpr):
    """Item number `item`: a tile of a row's lines and a KV head. The row is the last that begins at its place
    or before; every warp counts these by itself, and none waits for another.

    Row r's tiles start at place cu_query_lens[r] // tile_tokens + r, and the last, which sees most keys, is
    the first. count is the number of its key tiles, 0 where the place is empty; more is 0 where all places
    from here on are.
    """
    cu_query_lens, context_lens, num_rows, kv_heads = lens
    layout: gl.constexpr = gl.BlockedLayout([_ROWS_A_LANE], [32], [gl.num_warps()], [0])
    tokens, place = gl.load(cu_query_lens + num_rows), item // kv_heads
    before = 0
    for start in range(0, num_rows, 32 * _ROWS_A_LANE):
        rows = start + gl.arange(0, 32 * _ROWS_A_LANE, layout=layout)
        begins = gl.load(cu_query_lens + rows, mask=rows < num_rows, other=0)
        before += gl.sum(((rows < num_rows) & (begins // tile_tokens + rows <= place)).to(gl.int32), 0)
    row = before - 1
    first_token, next_token = gl.load(cu_query_lens + row), gl.load(cu_query_lens + row + 1)
    context = gl.load(context_lens + row)
    query_len = next_token - first_token
    number = place - (first_token // tile_tokens + row)
    first = ((query_len + tile_tokens - 1) // tile_tokens - 1 - number) * tile_tokens
    start_position = context - query_len + first
    seen = gl.minimum(start_position + tile_tokens, context)
    count = gl.where(first >= 0, (seen + 127) // 128, 0)
    more = ((first >= 0) | (next_token < tokens)).to(gl.int32)
    return row, first_token, first, query_len, start_position, context, item % kv_heads, count, more


@gluon.jit
def line_offsets(
    tile, token_stride, head_stride, part: gl.constexpr, group: gl.constexpr, head_dim: gl.constexpr,
    lines: gl.constexpr, layout: gl.constexpr,
):
    """Where lines [lines, head_dim] from part * lines on begin in a tensor of tokens; which of them are."""
    _row, first_token, first, query_len, _start_position, _context, head, count, _more = tile
    line = part * lines + gl.arange(0, lines, layout=gl.SliceLayout(1, layout))
    token = first + line // group
    column = gl.arange(0, head_dim, layout=gl.SliceLayout(0, layout))
    there = (line < 128 // group * group) & (token < query_len) & (count > 0)
    place, heads = (first_token + token).to(gl.int64), head * group + line % group
    offsets = (place * token_stride + heads * head_stride)[:, None] + column[None, :]
    return offsets, there[:, None] & (column >= 0)[None, :]


@gluon.jit
def ask_queries(buffer, query, tile, strides, part: gl.constexpr, group: gl.constexpr):
    """Half of a tile's lines, on their way into shared memory; zeros for lines that it lacks."""
    query_token_stride, query_head_stride, _out_token_stride, _out_head_stride = strides
    lines: gl.constexpr = buffer.shape[0]
    head_dim: gl.constexpr = buffer.shape[1]
    layout: gl.constexpr = gl.BlockedLayout(
        [1, 8], [256 // head_dim, head_dim // 8], [gl.num_warps(), 1], [1, 0]
    )
    offsets, mask = line_offsets(
        tile, query_token_stride, query_head_stride, part, group, head_dim, lines, layout
    )
    _copy(buffer, query + offsets, mask=mask)
    async_copy.commit_group()


@gluon.jit
def produce(
    k_blocks, v_blocks, bars, k_pool, v_pool, block_tables, table_stride, lens, tile, nowhere,
    group: gl.constexpr, block_size: gl.constexpr, halves: gl.constexpr, stages: gl.constexpr,
):
    """Asks for keys and values of every tile in its turn, the last keys first; blocks that the row lacks are
    zeros.
    """
    turn, done = nowhere * 0, nowhere * 0
    while tile[MORE] > 0:
        row, _first_token, _first, _query_len, _start_position, context, head, count, _more = tile
        table = block_tables + row.to(gl.int64) * table_stride
        for step in range(count):
            _ask(
                k_blocks, v_blocks, bars, k_pool, v_pool, table, context, head, count - 1 - step, done + step,
                nowhere, block_size, halves, stages,
            )
        done += count
        turn += 1
        tile = find_tile(lens, item_of(turn), 128 // group)


@gluon.jit
def _ask(
    k_blocks, v_blocks, bars, k_pool, v_pool, table, context, head, number, step, nowhere,
    block_size: gl.constexpr, halves: gl.constexpr, stages: gl.constexpr,
):
    """Asks for the keys and the values of one tile as soon as there is room."""
    k_bars, v_bars, k_free, v_free = bars
    blocks: gl.constexpr = 128 // block_size
    stage, again = step % stages, (step // stages & 1) ^ 1
    used = (context + block_size - 1) // block_size
    rows = ()
    for place in gl.static_range(blocks):
        index = number * blocks + place
        block = gl.load(table + gl.minimum(index, used - 1))
        rows += (gl.where(index < used, block * block_size, nowhere),)
    _fetch_tile(k_blocks, k_pool, k_bars, k_free, stage, again, rows, head, halves)
    _fetch_tile(v_blocks, v_pool, v_bars, v_free, stage, again, rows, head, halves)


@gluon.jit
def _fetch_tile(
    tile_blocks, pool, bars, free, stage, again, rows, head, halves: gl.constexpr
):
    """The blocks at these slots of the pool, for one KV head, into a stage that is free again."""
    blocks: gl.constexpr = len(rows)
    mbarrier.wait(free.index(stage), again)
    mbarrier.expect(bars.index(stage), 128 * 64 * 2 * halves)
    for half in gl.static_range(halves):
        column = (head * halves + half) * 64
        for place in gl.static_range(blocks):
            into = tile_blocks.index((stage * halves + half) * blocks + place)
            _fetch(pool, [rows[place], column], bars.index(stage), into)


@gluon.jit
def clear_tail(
    v_blocks, stage, context, block_size: gl.constexpr, head_dim: gl.constexpr, warps: gl.constexpr
):
    """Zeros for the values of the last block's unused slots, in this stage."""
    blocks: gl.constexpr = 128 // block_size
    halves: gl.constexpr = head_dim // 64
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    slots = gl.arange(0, block_size, layout=gl.SliceLayout(1, layout))
    for half in gl.static_range(halves):
        block = v_blocks.index((stage * halves + half) * blocks + context // block_size % blocks)
        held = block.load(layout)
        block.store(gl.where((slots < context % block_size)[:, None], held, gl.zeros_like(held)))
    fence_async_shared()
    barrier()
# fmt: on

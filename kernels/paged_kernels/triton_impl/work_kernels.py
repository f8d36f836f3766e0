# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""The device side of a decode step's work list: which rows begin with the same blocks, and who attends what.

Owns two kernels, run once a step; knows no keys. Invariant: rows are said to share tokens only where their
block tables name the same blocks from the first on, all of them before the block of the row's newest token.

What each row has of its own is cut into pieces no longer than an equal share of all key tiles for each
program that the device holds at once, what a group of rows has in common into an equal share of such tiles
alone; an end of a few tiles stays with the piece before it. A program attends one KV head of one piece: first
what is in common, so that the rows' own parts arrive last and join, each row by a program; then the largest
pieces. Records say, for each new token, what parts its answer has.
"""

import triton
import triton.language as tl

# Columns of a piece: the row whose block table is read, the number of rows, the first key and the one behind
# the last, the first line of partial results (-1: none, the answer is whole).
PIECE_COLUMNS = tl.constexpr(8)
# Columns of a record: parts (0: none), those in common, the first line of these, the distance between them,
# the first line of the row's own.
RECORD_COLUMNS = tl.constexpr(8)
_AT_ONCE = tl.constexpr(32)
_NOBODY = tl.constexpr(0x3FFF)
_LIST_ARGUMENTS = ["num_rows", "block_size", "programs", "least_tiles", "least_shared", "least_saved"]
_LIST_ARGUMENTS += ["kv_heads", "group", "block_m", "block_n"]


# fmt: off
@triton.jit(do_not_specialize=["num_rows", "block_size", "key_block"])
def compare_kernel(
    leaders, shared, block_tables, context_lens, cu_query_lens, num_rows, block_size, key_block, table_stride,
    padded_rows: tl.constexpr, at_once: tl.constexpr, overlap: tl.constexpr,
):
    """Program r: the first row with r's entry at key_block, and how many blocks r shares with the last such
    row before it. Grid (rows,).
    """
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, rows = tl.program_id(0), tl.arange(0, padded_rows)
    here = rows < num_rows
    lens = tl.load(cu_query_lens + rows + 1, mask=here, other=0)
    lens -= tl.load(cu_query_lens + rows, mask=here, other=0)
    contexts = tl.load(context_lens + rows, mask=here, other=0)
    full = tl.where(lens == 1, tl.maximum(contexts - 1, 0) // block_size, 0)
    able = full > key_block
    keys = tl.load(block_tables + rows.to(tl.int64) * table_stride + key_block, mask=able, other=-1)
    mine = rows == row
    same = able & (keys == tl.sum(tl.where(mine, keys, 0), 0)) | mine
    leader = tl.min(tl.where(same, rows, padded_rows), 0)
    before = tl.max(tl.where(same & (rows < row), rows, -1), 0)
    count = 0
    if before >= 0:
        count = tl.minimum(
            tl.sum(tl.where(mine, full, 0), 0), tl.sum(tl.where(rows == before, full, 0), 0)
        )
        ours = block_tables + row.to(tl.int64) * table_stride
        theirs = block_tables + before.to(tl.int64) * table_stride
        start = 0
        while start < count:
            offsets = start + tl.arange(0, at_once)
            own = tl.load(ours + offsets, mask=offsets < count, other=0)
            other = tl.load(theirs + offsets, mask=offsets < count, other=0)
            count = tl.minimum(count, tl.min(tl.where(own == other, 0x7FFFFFFF, offsets), 0))
            start += at_once
    tl.store(leaders + row, leader)
    tl.store(shared + row, count)


@triton.jit
def _order(
    scratch, leaders, shared, num_rows, rows, here, most_rows: tl.constexpr, padded_rows: tl.constexpr
):
    """Puts rows with one leader together: for each place the row, its group's first place, what it shares."""
    leader = tl.load(leaders + rows, mask=here, other=_NOBODY)
    place, first = rows * 0, rows * 0
    for start in range(0, num_rows, _AT_ONCE):
        others = start + tl.arange(0, _AT_ONCE)
        theirs = tl.load(leaders + others, mask=others < num_rows, other=_NOBODY)
        sooner = (theirs * padded_rows + others)[None, :] < (leader * padded_rows + rows)[:, None]
        place += tl.sum(sooner.to(tl.int32), 1)
        first += tl.sum((theirs[None, :] < leader[:, None]).to(tl.int32), 1)
    tl.store(scratch + place, rows, mask=here)
    tl.store(scratch + padded_rows + place, place - (place - first) % most_rows, mask=here)
    tl.store(scratch + 2 * padded_rows + place, tl.load(shared + rows, mask=here, other=0), mask=here)
    tl.debug_barrier()


@triton.jit
def _groups(scratch, num_rows, places, here, most_rows: tl.constexpr, padded_rows: tl.constexpr):
    """Of the row at each place: its group's first place, rows in the group, blocks that all of them share."""
    group = tl.load(scratch + padded_rows + places, mask=here, other=-1)
    size, common = (group >= 0).to(tl.int32), places * 0 + 0x7FFFFFFF
    for other in tl.static_range(1, most_rows):
        there = here & (group + other < num_rows)
        theirs = tl.load(scratch + padded_rows + group + other, mask=there, other=-1)
        blocks = tl.load(scratch + 2 * padded_rows + group + other, mask=there, other=0)
        member = there & (theirs == group)
        size += member.to(tl.int32)
        common = tl.minimum(common, tl.where(member, blocks, 0x7FFFFFFF))
    return group, size, common


@triton.jit
def _pieces_of(tiles, most):
    """Into how many pieces of `most` tiles, the last one a little longer or shorter, so many are cut."""
    return tl.maximum(tl.cdiv(tiles - tl.maximum(most // 8, 2), most), (tiles > 0).to(tl.int32))


@triton.jit
def _most_in_common(prefix, groups, own_parts, most, num_rows, programs, least, kv_heads):
    """Tiles of a piece of what rows have in common: an equal share of all such tiles for each program, but no
    fewer than `least`, nor so few that the list has no room for the pieces. groups: lanes that lead a group.
    """
    room = num_rows + num_rows // 2 + tl.cdiv(programs, kv_heads) - tl.sum(own_parts, 0)
    shares = tl.minimum(programs // kv_heads, room - tl.sum(groups.to(tl.int32), 0))
    each = tl.cdiv(tl.sum(tl.where(groups, prefix, 0), 0), tl.maximum(shares, 1))
    return tl.minimum(tl.maximum(each, least), most)


@triton.jit
def _larger_before(scratch, num_rows, places, tiles, padded_rows: tl.constexpr):
    """How many rows have a longer last piece, or one as long and stand before."""
    tl.store(scratch + 3 * padded_rows + places, tiles, mask=places < num_rows)
    tl.debug_barrier()
    before = places * 0
    for start in range(0, num_rows, _AT_ONCE):
        others = start + tl.arange(0, _AT_ONCE)
        theirs = tl.load(scratch + 3 * padded_rows + others, mask=others < num_rows, other=0)[None, :]
        sooner = (theirs == tiles[:, None]) & (theirs > 0) & (others[None, :] < places[:, None])
        before += tl.sum(((theirs > tiles[:, None]) | sooner).to(tl.int32), 1)
    return before


@triton.jit
def _write_pieces(
    pieces, members, row, rows, token, member, leads, used, at, last_at, count, most, first_tile, end,
    line, distance, block_m, block_n,
):
    """Pieces 0..count of each lane's tiles from first_tile to the key `end`, at `at` and on, but the last at
    last_at. line -1: the answer is whole.
    """
    for number in range(tl.max(tl.where(used, count, 0), 0)):
        here = used & (number < count)
        place = tl.where(number == count - 1, last_at, at + number)
        tl.store(members + place * block_m + member, token, mask=here)
        low = (first_tile + number * most) * block_n
        high = tl.where(number == count - 1, end, low + most * block_n)
        piece, mine = pieces + place * PIECE_COLUMNS, here & leads
        tl.store(piece, row, mask=mine)
        tl.store(piece + 1, rows, mask=mine)
        tl.store(piece + 2, low, mask=mine)
        tl.store(piece + 3, high, mask=mine)
        tl.store(piece + 4, tl.where(line < 0, -1, line + number * distance), mask=mine)


@triton.jit
def _write_records(records, token, used, parts, common, common_line, distance, own_line):
    record = records + token * RECORD_COLUMNS
    tl.store(record, parts, mask=used)
    tl.store(record + 1, common, mask=used)
    tl.store(record + 2, common_line, mask=used)
    tl.store(record + 3, distance, mask=used)
    tl.store(record + 4, own_line, mask=used)


@triton.jit
def _find_rows(
    scratch, leaders, shared, context_lens, cu_query_lens, num_rows, places, here,
    most_rows: tl.constexpr, padded_rows: tl.constexpr,
):
    """Of the row at each place: itself, its new token, its context (0: it has no new token), the first place
    and the number of rows of its group, blocks in common.
    """
    row, begin, size, common = places, places, here.to(tl.int32), places * 0
    if tl.max(tl.load(shared + places, mask=here, other=0), 0) > 0:
        _order(scratch, leaders, shared, num_rows, places, here, most_rows, padded_rows)
        row = tl.load(scratch + places, mask=here, other=0)
        begin, size, common = _groups(scratch, num_rows, places, here, most_rows, padded_rows)
    token = tl.load(cu_query_lens + row, mask=here, other=0)
    new = tl.load(cu_query_lens + row + 1, mask=here, other=0) - token
    context = tl.where(here & (new == 1), tl.load(context_lens + row, mask=here, other=0), 0)
    return row, token, context, begin, size, common


@triton.jit
def _lines(leads, size, parts, common_parts, own_parts, group):
    """First lines of partial results: of what rows have in common, and of each row's own (-1: none)."""
    common_lines = common_parts * size * group
    common_line = tl.cumsum(tl.where(leads, common_lines, 0), 0) - common_lines
    own_lines = tl.where(parts > 1, own_parts * group, 0)
    own_line = tl.cumsum(own_lines, 0) - own_lines + tl.sum(tl.where(leads, common_lines, 0), 0)
    return common_line, tl.where(parts > 1, own_line, -1)


@triton.jit(do_not_specialize=_LIST_ARGUMENTS)
def list_kernel(
    state, pieces, members, records, arrivals, scratch, leaders, shared, context_lens, cu_query_lens,
    num_rows, block_size, programs, least_tiles, least_shared, least_saved, kv_heads, group, block_m, block_n,
    most_rows: tl.constexpr, padded_rows: tl.constexpr, overlap: tl.constexpr,
):
    """Writes the list for so many programs at once, and zeros to arrivals; no piece is cut shorter than
    least_tiles, or half of it where it is in common.

    One program. state: the number of pieces. most_rows: that attend together, block_m // group. scratch:
    4 * padded_rows int32.
    """
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    places = tl.arange(0, padded_rows)
    for start in range(0, num_rows * kv_heads, padded_rows):
        tl.store(arrivals + start + places, places * 0, mask=start + places < num_rows * kv_heads)
    row, token, context, begin, size, common = _find_rows(
        scratch, leaders, shared, context_lens, cu_query_lens, num_rows, places, places < num_rows,
        most_rows, padded_rows,
    )
    member, used = places - begin, context > 0
    leads = used & (member == 0)
    tokens = tl.where(used & (size > 1), common, 0) * block_size
    prefix = tl.where(tokens >= least_shared, tokens // block_n, 0)
    prefix = tl.where(prefix * (size - 1) >= least_saved, prefix, 0)
    own = tl.cdiv(context - prefix * block_n, block_n)
    tiles = tl.sum(own + tl.where(leads, prefix, 0), 0) * kv_heads
    most = tl.maximum(tl.cdiv(tiles, programs), least_tiles)
    own_parts = _pieces_of(own, most)
    most_in_common = _most_in_common(
        prefix, leads & (prefix > 0), own_parts, most, num_rows, programs, tl.cdiv(least_tiles, 2), kv_heads
    )
    common_parts = _pieces_of(prefix, most_in_common)
    parts = common_parts + own_parts
    line, own_line = _lines(leads, size, parts, common_parts, own_parts, group)
    _write_records(
        records, token, used, tl.where(parts > 1, parts, 0), common_parts, line + member * group,
        size * group, own_line,
    )
    counted, longer = tl.where(leads, common_parts, 0), tl.maximum(own_parts - 1, 0)
    at = tl.cumsum(counted, 0) - common_parts
    own_at = tl.sum(counted, 0) + tl.cumsum(longer, 0) - longer
    last_at = tl.sum(counted + longer, 0) + _larger_before(
        scratch, num_rows, places, own - longer * most, padded_rows
    )
    _write_pieces(
        pieces, members, row, size, token, member, leads, prefix > 0, at, at + common_parts - 1, common_parts,
        most_in_common, 0, prefix * block_n, line, size * group, block_m, block_n,
    )
    _write_pieces(
        pieces, members, row, 1, token, 0, used, used, own_at, last_at, own_parts,
        most, prefix, context, own_line, group, block_m, block_n,
    )
    tl.store(state, tl.sum(counted + own_parts, 0))
# fmt: on

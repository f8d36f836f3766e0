"""The work list of a decode step, made once a step on the device, and the attention that follows it.

Owns the list's memory and launches; knows neither the arithmetic (decode_kernel.py) nor how pieces are found
(work_kernels.py). Invariant: launch shapes and sizes depend on the number of rows, the heads and the device
only, so that a captured list serves any lengths.
"""

import math
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from paged_kernels.fp8_pool import is_fp8
from paged_kernels.triton_impl import machine
from paged_kernels.triton_impl.tiles import Tile, Tiles, tiles_for
from paged_kernels.triton_impl.work_kernels import (
    PIECE_COLUMNS,
    RECORD_COLUMNS,
    compare_kernel,
    list_kernel,
)

LEAST_ROWS, LEAST_FEW_ROWS, MOST_ROWS = 33, 8, 4096
"""That have a list; LEAST_FEW_ROWS where there is a tile of few rows."""
_PADDED_ROWS = 256
"""At least, so that one compiled kernel serves all batches of up to so many rows."""
_COMPARED_AT_ONCE = 256
_ALIGNED = 4
"""Parts begin at multiples of 16 bytes: kernels are compiled for that."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How work is cut.

    programs: on each multiprocessor, as many as are resident. least_tiles: that a context is cut into.
    least_shared, least_saved: what rows must have in common to be attended together, in tokens, and in tiles
    that are then not read again.
    """

    programs: int = 4
    least_tiles: int = 8
    least_shared: int = 256
    least_saved: int = 16


POLICY = Policy()
FEW_POLICY = Policy(programs=2)
"""For the tile of few rows."""
FEW_KEYS = 256
"""At least that a piece of few rows has."""
FEW_PROGRAMS = 3
"""On each multiprocessor: rows that would have fewer, of a KV head each, are few."""


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """Who attends what in one step of decodes; valid until the arguments of `list_work` change.

    state [1], pieces [P, columns], members [P, block_m], records [tokens, columns], arrivals [tokens, heads]:
    int32 on the device; see work_kernels. lines: of partial results for each KV head. settled: attention may
    read the list before the kernel in front of it has ended (machine.overlaps).
    """

    state: Tensor
    pieces: Tensor
    members: Tensor
    records: Tensor
    arrivals: Tensor
    lines: int
    rows: int
    heads: tuple[int, int]
    tile: Tile
    policy: Policy
    settled: bool


def decode_work(
    block_tables: Tensor,
    cu_query_lens: Tensor,
    context_lens: Tensor,
    k_pool: Tensor,
    query_heads: int,
    dtype: torch.dtype,
) -> DecodeWork | None:
    """The list of a step of decodes for layers with pools and heads like these, or None for batches that are
    attended as fast row by row: the number of rows decides, and nothing on the device.

    The list is settled: a kernel that settles (rotate_store) must stand before the first attention by it.
    """
    rows, (block_size, kv_heads, head_dim) = context_lens.shape[0], k_pool.shape[1:]
    group = query_heads // kv_heads
    tiles = tiles_for(k_pool.device, dtype, head_dim, group, is_fp8(k_pool))
    if not (LEAST_FEW_ROWS if tiles.few else LEAST_ROWS) <= rows <= MOST_ROWS:
        return None
    tile, policy = cut_of(tiles, rows * kv_heads, machine.units(k_pool.device))
    lens = block_tables, cu_query_lens, context_lens
    return replace(list_work(*lens, block_size, kv_heads, group, tile, policy), settled=True)


def cut_of(tiles: Tiles, programs: int, units: int) -> tuple[Tile, Policy]:
    """The tile and the policy for rows that would have so many programs, of a KV head of a whole row each."""
    if tiles.few is None or programs >= FEW_PROGRAMS * units:
        return tiles.short, POLICY
    return tiles.few, replace(FEW_POLICY, least_tiles=max(1, FEW_KEYS // tiles.few.block_n))


def list_work(
    block_tables: Tensor,
    cu_query_lens: Tensor,
    context_lens: Tensor,
    block_size: int,
    kv_heads: int,
    group: int,
    tile: Tile,
    policy: Policy,
) -> DecodeWork:
    """The list of a step whose rows have at most one new token each; arguments as paged_attention has them.

    Rows whose tables begin with the same blocks attend to these together. At most MOST_ROWS rows.
    """
    work, leaders, shared, scratch = _empty(context_lens, (kv_heads, group), tile, policy)
    rows, padded, overlap = work.rows, leaders.shape[0], machine.overlaps(context_lens.device)
    compare_kernel[(rows,)](
        leaders,
        shared,
        block_tables,
        context_lens,
        cu_query_lens,
        rows,
        block_size,
        -(-policy.least_shared // block_size) - 1,
        block_tables.stride(0),
        padded,
        _COMPARED_AT_ONCE,
        overlap,
        num_warps=4,
        **machine.launch_options(overlap),
    )
    list_kernel[(1,)](
        *(work.state, work.pieces, work.members, work.records, work.arrivals, scratch, leaders, shared),
        context_lens,
        cu_query_lens,
        rows,
        block_size,
        machine.units(context_lens.device) * policy.programs,
        policy.least_tiles,
        policy.least_shared,
        policy.least_saved,
        kv_heads,
        group,
        tile.block_m,
        tile.block_n,
        tile.block_m // group,
        padded,
        overlap,
        num_warps=8,
        **machine.launch_options(overlap),
    )
    return work


def _empty(
    context_lens: Tensor, heads: tuple[int, int], tile: Tile, policy: Policy
) -> tuple[DecodeWork, Tensor, Tensor, Tensor]:
    """(list, leaders, shared, scratch), nothing in them; as large as any lengths may need."""
    rows, (kv_heads, group) = context_lens.shape[0], heads
    cuts = -(-machine.units(context_lens.device) * policy.programs // kv_heads)
    pieces = rows + rows // 2 + cuts
    padded = max(_PADDED_ROWS, triton.next_power_of_2(rows))
    shapes = {
        "state": (1,),
        "pieces": (pieces, PIECE_COLUMNS.value),
        "members": (pieces, tile.block_m),
        "records": (rows, RECORD_COLUMNS.value),
        "arrivals": (rows * kv_heads,),
        "leaders": (padded,),
        "shared": (padded,),
        "scratch": (4 * padded,),
    }
    sizes = [-(-math.prod(shape) // _ALIGNED) * _ALIGNED for shape in shapes.values()]
    memory = torch.empty(sum(sizes), dtype=torch.int32, device=context_lens.device)
    parts = {
        name: part[: math.prod(shape)].view(shape)
        for (name, shape), part in zip(shapes.items(), torch.split(memory, sizes), strict=True)
    }
    lines = (2 * rows + cuts) * group + cuts * (tile.block_m // group) * group
    given = (parts.pop("leaders"), parts.pop("shared"), parts.pop("scratch"))
    return DecodeWork(
        **parts, lines=lines, rows=rows, heads=heads, tile=tile, policy=policy, settled=False
    ), *given

"""paged_attention on Triton: chooses tiles, splits and launches from what the host already knows.

Owns launch shapes; knows nothing of the arithmetic, which is in attention_kernel.py and
join_kernel.py. Invariant: every row is
attended by exactly one launch, and launch shapes depend on shapes and on max_query_len and max_context_len
only.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
from torch import Tensor

from paged_kernels import contracts
from paged_kernels.fp8_pool import is_fp8
from paged_kernels.triton_impl import fp8, hopper_attention, machine
from paged_kernels.triton_impl.addressing import division_magic
from paged_kernels.triton_impl.attention_kernel import attention_kernel
from paged_kernels.triton_impl.decode_attention import attend_listed
from paged_kernels.triton_impl.decode_work import DecodeWork
from paged_kernels.triton_impl.join_kernel import join_kernel
from paged_kernels.triton_impl.tiles import Tile, Tiles, tiles_for

_LOG2_E = math.log2(math.e)
_MAX_SPLITS = 64
MIN_SPLIT_TOKENS = 128
_PROGRAMS_PER_UNIT = 2
_JOINED_AT_ONCE = 16


@lru_cache(maxsize=16)
def _unused(device: torch.device) -> Tensor:
    """In place of partial results where nothing is split: of their dtype, so the same compiled kernel."""
    return torch.empty(1, dtype=torch.float32, device=device)


def choose_splits(programs: int, max_context_len: int, units: int) -> int:
    """Into how many splits a context is cut, so that a launch of few programs still fills the device."""
    wanted = _PROGRAMS_PER_UNIT * units // max(programs, 1)
    longest = max(1, max_context_len // MIN_SPLIT_TOKENS)
    return max(1, min(wanted, longest, _MAX_SPLITS))


def paged_attention(
    query: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_tables: Tensor,
    cu_query_lens: Tensor,
    context_lens: Tensor,
    scale: float,
    max_query_len: int,
    max_context_len: int,
    out: Tensor | None = None,
    window: int = 0,
    softcap: float = 0.0,
    tiles: Tiles | None = None,
    splits: int | None = None,
    work: DecodeWork | None = None,
) -> Tensor:
    """Causal attention of rows of any length over their blocks; arguments as in torch_impl.paged_attention.

    max_query_len and max_context_len must bound the rows: longer ones are attended wrongly. tiles and
    splits override the chosen launch shapes, for measurements. work: the list of these very rows, of one
    token each, and no window. Raises contracts.ArgumentError. Method: see attention_kernel.
    """
    contracts.check_paged_attention(
        *(query, k_pool, v_pool, block_tables, cu_query_lens, context_lens, max_query_len, max_context_len),
        *(out, window, softcap),
    )
    if out is None:
        out = query.new_empty(query.shape)
    rows, group = context_lens.shape[0], query.shape[1] // k_pool.shape[2]
    if rows == 0 or query.shape[0] == 0:
        return out
    if work is not None:
        _check_work(work, query, k_pool, rows, window)
        return attend_listed(query, k_pool, v_pool, block_tables, scale, softcap, out, work)
    given = tiles is not None or splits is not None
    tiles = tiles or tiles_for(query.device, query.dtype, query.shape[2], group, is_fp8(k_pool))
    args = (query, k_pool, v_pool, block_tables, cu_query_lens, context_lens, scale, max_context_len, out)
    call = _Call(*args, splits=splits, window=window, softcap=softcap)
    short_len = tiles.short.block_m // group
    if not given and max_query_len > short_len and call.fits_hopper():
        hopper_attention.attend(query, k_pool, v_pool, block_tables, cu_query_lens, context_lens, scale, out)
        return out
    if rows > 1 or max_query_len <= short_len:
        is_few = rows * k_pool.shape[2] < _PROGRAMS_PER_UNIT * machine.units(query.device)
        call.launch(tiles.few if tiles.few and is_few else tiles.short, rows, 1, short_len, one_tile=True)
    if max_query_len > short_len:
        count = query.shape[0] // (tiles.long.block_m // group) + rows
        call.launch(tiles.long, count, short_len + 1, max_query_len, one_tile=False)
    return out


def _check_work(work: DecodeWork, query: Tensor, k_pool: Tensor, rows: int, window: int) -> None:
    heads = k_pool.shape[2], query.shape[1] // k_pool.shape[2]
    if work.rows != rows or work.heads != heads or query.shape[0] > rows:
        raise contracts.ArgumentError(
            f"work: of {work.rows} rows and heads {work.heads}, the call has {rows} rows, "
            f"{query.shape[0]} tokens and heads {heads}"
        )
    if window:
        raise contracts.ArgumentError(f"work: window {window}, a work list is of whole contexts")


@dataclass(frozen=True)
class _Call:
    """The arguments of one call, checked; see torch_impl.paged_attention."""

    query: Tensor
    k_pool: Tensor
    v_pool: Tensor
    block_tables: Tensor
    cu_query_lens: Tensor
    context_lens: Tensor
    scale: float
    max_context_len: int
    out: Tensor
    splits: int | None
    window: int
    softcap: float

    def fits_hopper(self) -> bool:
        """Whether that kernel takes these, and fills the device without splits of contexts."""
        query, pool = self.query, self.k_pool
        kv_heads, group = pool.shape[2], query.shape[1] // pool.shape[2]
        programs = hopper_attention.tiles(query.shape[0], self.context_lens.shape[0], group) * kv_heads
        whole = choose_splits(programs, self.max_context_len, machine.units(query.device)) == 1
        return whole and hopper_attention.fits(
            query, pool, self.v_pool, self.scale, self.window, self.softcap
        )

    def launch(self, tile: Tile, count: int, min_len: int, max_len: int, one_tile: bool) -> None:
        """Attend the rows of min_len..max_len queries with count tiles, then join what was split."""
        query, pool, out = self.query, self.k_pool, self.out
        wide = query.dtype == torch.float32
        read = fp8.ReadPools.of(pool, self.v_pool, pairs=one_tile and (machine.INTERPRETED or not wide))
        (kv_heads, head_dim), group = pool.shape[2:], query.shape[1] // pool.shape[2]
        units, overlap = machine.units(query.device), machine.overlaps(query.device)
        most_keys = self.max_context_len
        if self.window:
            most_keys = min(most_keys, self.window + tile.block_m // group + tile.block_n)
        splits = self.splits or choose_splits(count * kv_heads, most_keys, units)
        partial = partial_lse = _unused(query.device)
        if splits > 1:
            lines = count * kv_heads * splits * tile.block_m
            partial = query.new_empty((lines, head_dim), dtype=torch.float32)
            partial_lse = query.new_empty((lines,), dtype=torch.float32)
        block_d = max(16 * read.width, triton.next_power_of_2(head_dim))
        least = max(1, MIN_SPLIT_TOKENS // tile.block_n)
        rows_args = (self.context_lens.shape[0], kv_heads, group, min_len, max_len, splits, least)
        attention_kernel[(count * kv_heads, splits)](
            *(out, partial, partial_lse, query),
            *(read.k_values, read.v_values, read.k_exponents, read.v_exponents),
            self.block_tables,
            self.cu_query_lens,
            self.context_lens,
            self.scale / self.softcap if self.softcap else self.scale * _LOG2_E,
            self.softcap * _LOG2_E,
            *rows_args,
            self.window,
            pool.shape[1],
            *division_magic(pool.shape[1]),
            *read.k_values.stride()[:3],
            read.word_stride,
            self.block_tables.stride(0),
            *query.stride()[:2],
            *out.stride()[:2],
            head_dim,
            tile.block_m,
            tile.block_n,
            block_d,
            one_tile,
            "ieee",
            machine.INTERPRETED or (read.scaled and wide),
            overlap,
            self.window > 0,
            self.softcap > 0,
            read.scaled,
            read.width == 2,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **machine.launch_options(overlap),
        )
        if splits > 1:
            self._join(tile, count, block_d, partial, partial_lse, rows_args, one_tile)

    def _join(
        self,
        tile: Tile,
        count: int,
        block_d: int,
        partial: Tensor,
        partial_lse: Tensor,
        rows_args: tuple[int, ...],
        one_tile: bool,
    ) -> None:
        """Joins the splits that `launch` wrote."""
        overlap, (_, kv_heads, group) = machine.overlaps(self.out.device), rows_args[:3]
        join_kernel[(count * kv_heads, tile.block_m // group * group)](
            self.out,
            partial,
            partial_lse,
            self.cu_query_lens,
            self.context_lens,
            *rows_args,
            self.window,
            *self.out.stride()[:2],
            self.out.shape[2],
            tile.block_m,
            tile.block_n,
            block_d,
            _JOINED_AT_ONCE,
            one_tile,
            overlap,
            self.window > 0,
            **machine.launch_options(overlap),
        )

"""Attention of decodes by a work list: its launches.

Owns them and the memory of partial results; knows neither the arithmetic nor how the list came about.
Invariant: launch shapes depend on the list's sizes only, never on what it holds.
"""

import math

import torch
import triton
from torch import Tensor

from paged_kernels.triton_impl import fp8, machine
from paged_kernels.triton_impl.addressing import division_magic
from paged_kernels.triton_impl.decode_kernel import decode_kernel
from paged_kernels.triton_impl.decode_work import DecodeWork

_LOG2_E = math.log2(math.e)
_JOINED_LINES = 32


def attend_listed(
    query: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_tables: Tensor,
    scale: float,
    softcap: float,
    out: Tensor,
    work: DecodeWork,
) -> Tensor:
    """out [T, Hq, D] of the rows that `work` lists; the other arguments, checked, as in paged_attention."""
    tile, (kv_heads, group) = work.tile, work.heads
    head_dim, wide = query.shape[2], query.dtype == torch.float32
    read = fp8.ReadPools.of(k_pool, v_pool, pairs=machine.INTERPRETED or not wide)
    overlap = machine.overlaps(query.device)
    partial = query.new_empty((work.lines * kv_heads, head_dim), dtype=torch.float32)
    partial_lse = query.new_empty((work.lines * kv_heads,), dtype=torch.float32)
    lines = triton.next_power_of_2(group)
    block_d = max(16 * read.width, triton.next_power_of_2(head_dim))
    decode_kernel[(work.pieces.shape[0] * kv_heads,)](
        *(out, partial, partial_lse),
        *(work.state, work.pieces, work.members, work.records, work.arrivals),
        *(query, read.k_values, read.v_values, read.k_exponents, read.v_exponents, block_tables),
        scale / softcap if softcap else scale * _LOG2_E,
        softcap * _LOG2_E,
        kv_heads,
        group,
        k_pool.shape[1],
        *division_magic(k_pool.shape[1]),
        *read.k_values.stride()[:3],
        read.word_stride,
        block_tables.stride(0),
        *query.stride()[:2],
        *out.stride()[:2],
        head_dim,
        tile.block_m,
        tile.block_n,
        block_d,
        "ieee",
        machine.INTERPRETED or (read.scaled and wide),
        overlap,
        softcap > 0,
        read.scaled,
        read.width == 2,
        work.settled,
        lines,
        max(2, _JOINED_LINES // lines),
        num_warps=tile.warps,
        num_stages=tile.stages,
        maxnreg=tile.registers or None,
        **machine.launch_options(overlap),
    )
    return out

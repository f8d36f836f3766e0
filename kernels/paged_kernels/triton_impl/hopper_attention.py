"""Attention of rows of any length on compute capability 9.0: what its kernel can take, and its launch.

Owns the rule of shapes, the descriptors and the number of programs; knows nothing of the arithmetic, which is
in hopper_kernel.py. Invariant: a launch depends on shapes alone, so one graph serves any mix of rows.
"""

import math

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from paged_kernels.triton_impl import machine
from paged_kernels.triton_impl.hopper_kernel import hopper_kernel

LINES = 128
"""Of a tile: query token x query head of the group. As many keys at a time."""
_STAGES = 2
_MOST_TURNS = 10
"""Up to so many tiles each, programs stay and take turns; more are handed out by the device one by one, which
evens out better what is unequal.
"""


def tiles(tokens: int, rows: int, group: int) -> int:
    """Of so many tokens in so many rows at most, for each KV head."""
    return tokens // (LINES // group) + rows


def fits(query: Tensor, k_pool: Tensor, v_pool: Tensor, scale: float, window: int, softcap: float) -> bool:
    """Whether the kernel takes these: 16-bit numbers, 128 or 64 dimensions, blocks of 8, 16, 32, 64 or 128
    tokens, up to 64 query heads for each KV head, contiguous pools, neither window nor soft cap.
    """
    block_size, kv_heads, head_dim = k_pool.shape[1:]
    return (
        machine.capability(query.device) == (9, 0)
        and query.dtype == k_pool.dtype
        and query.dtype in (torch.bfloat16, torch.float16)
        and head_dim in (64, 128)
        and block_size in (8, 16, 32, 64, 128)
        and query.shape[1] // kv_heads <= LINES // 2
        and k_pool.is_contiguous()
        and v_pool.is_contiguous()
        and scale > 0
        and not window
        and not softcap
    )


def _descriptor(pool: Tensor) -> TensorDescriptor:
    """The pool as [slots, heads * head_dim], in boxes of one block and 64 dimensions."""
    slots = pool.view(-1, pool.shape[2] * pool.shape[3])
    layout = gl.NVMMASharedLayout(128, 16, 2)
    return TensorDescriptor(slots, list(slots.shape), list(slots.stride()), [pool.shape[1], 64], layout)


def _programs(query: Tensor, rows: int, kv_heads: int) -> int:
    group, units = query.shape[1] // kv_heads, machine.units(query.device)
    most = tiles(query.shape[0], rows, group) * kv_heads
    full = tiles(query.shape[0], 0, group) * kv_heads
    return most if full > _MOST_TURNS * units else min(most, units)


def attend(
    query: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_tables: Tensor,
    cu_query_lens: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    """All rows, into out; arguments as in torch_impl.paged_attention. They must fit."""
    block_size, kv_heads, head_dim = k_pool.shape[1:]
    rows, overlap = context_lens.shape[0], machine.overlaps(query.device)
    hopper_kernel[(_programs(query, rows, kv_heads),)](
        out,
        query,
        _descriptor(k_pool),
        _descriptor(v_pool),
        block_tables,
        cu_query_lens,
        context_lens,
        scale * math.log2(math.e),
        rows,
        kv_heads,
        k_pool.shape[0] * block_size,
        block_tables.stride(0),
        *query.stride()[:2],
        *out.stride()[:2],
        query.shape[1] // kv_heads,
        block_size,
        head_dim,
        _STAGES,
        overlap,
        num_warps=4,
        **machine.launch_options(overlap),
    )

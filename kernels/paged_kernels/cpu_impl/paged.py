"""store_kvcache and paged_attention by the compiled kernels, with the contracts of every other backend.

Owns the passing of tensors as addresses and strides; knows no arithmetic. Invariant: every address handed
over belongs to a tensor that lives until the call returns.
"""

import ctypes
import itertools

import torch
from torch import Tensor

from paged_kernels import contracts, fp8_pool
from paged_kernels.cpu_impl import library

DTYPES = (torch.float32, torch.bfloat16)


def store_kvcache(key: Tensor, value: Tensor, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor) -> None:
    """As torch_impl.store_kvcache. Raises contracts.ArgumentError; IndexError for a slot outside the pool."""
    contracts.check_store_kvcache(key, value, k_pool, v_pool, slot_mapping)
    _refuse_fp8(k_pool)
    slots = slot_mapping.contiguous()
    arguments = library.Store(
        key=key.data_ptr(),
        value=value.data_ptr(),
        k_pool=k_pool.data_ptr(),
        v_pool=v_pool.data_ptr(),
        slots=slots.data_ptr(),
        tokens=key.shape[0],
        slot_bytes=slots.itemsize,
        key_token=key.stride(0),
        key_head=key.stride(1),
        value_token=value.stride(0),
        value_head=value.stride(1),
        pool_block=k_pool.stride(0),
        pool_slot=k_pool.stride(1),
        pool_head=k_pool.stride(2),
        num_blocks=k_pool.shape[0],
        block_size=k_pool.shape[1],
        kv_heads=k_pool.shape[2],
        head_dim=k_pool.shape[3],
        element_bytes=key.itemsize,
    )
    if library.load().call["store_kvcache"](ctypes.byref(arguments)):
        raise IndexError(f"slot_mapping: a slot is not below {k_pool.shape[0] * k_pool.shape[1]}")


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
) -> Tensor:
    """As torch_impl.paged_attention, float32 or bfloat16.

    A query's result does not depend on its batch or chunk, in a single bit.

    Raises contracts.ArgumentError; IndexError for a block outside the pool.
    """
    contracts.check_paged_attention(
        *(query, k_pool, v_pool, block_tables, cu_query_lens, context_lens, max_query_len, max_context_len),
        *(out, window, softcap),
    )
    _refuse_fp8(k_pool)
    if query.dtype not in DTYPES:
        raise contracts.DtypeError(f"query: dtype {query.dtype}, expected float32 or bfloat16")
    if out is None:
        out = query.new_zeros(query.shape)
    starts, contexts = cu_query_lens.contiguous(), context_lens.contiguous()
    _check_bounds(starts, contexts, query.shape[0], max_context_len)
    arguments = library.Attention(
        query=query.data_ptr(),
        out=out.data_ptr(),
        k_pool=k_pool.data_ptr(),
        v_pool=v_pool.data_ptr(),
        tables=block_tables.data_ptr(),
        starts=starts.data_ptr(),
        contexts=contexts.data_ptr(),
        query_token=query.stride(0),
        query_head=query.stride(1),
        out_token=out.stride(0),
        out_head=out.stride(1),
        pool_block=k_pool.stride(0),
        pool_slot=k_pool.stride(1),
        pool_head=k_pool.stride(2),
        num_blocks=k_pool.shape[0],
        table_row=block_tables.stride(0),
        rows=contexts.shape[0],
        block_size=k_pool.shape[1],
        kv_heads=k_pool.shape[2],
        query_heads=query.shape[1],
        head_dim=k_pool.shape[3],
        window=window,
        scale=scale,
        softcap=softcap,
    )
    if library.load().call["paged_attention"](ctypes.byref(arguments), query.dtype == torch.bfloat16):
        raise IndexError(f"block_tables: a block is not in 0..{k_pool.shape[0] - 1}")
    return out


def _refuse_fp8(k_pool: Tensor) -> None:
    if fp8_pool.is_fp8(k_pool):
        raise contracts.DtypeError(f"k_pool: dtype {k_pool.dtype}, expected that of the query")


def _check_bounds(starts: Tensor, contexts: Tensor, tokens: int, max_context_len: int) -> None:
    """What a compiled kernel could not survive: rows outside the query, contexts outside the block tables."""
    cu, lens = starts.tolist(), contexts.tolist()
    if cu[0] < 0 or cu[-1] > tokens or any(b < a for a, b in itertools.pairwise(cu)):
        raise contracts.ShapeError(f"cu_query_lens: {cu[0]}..{cu[-1]}, expected ascending within 0..{tokens}")
    if lens and max(lens) > max_context_len:
        raise contracts.ShapeError(f"context_lens: {max(lens)} tokens, max_context_len is {max_context_len}")
    for row, context in enumerate(lens):
        queries = cu[row + 1] - cu[row]
        if context and queries > context:
            raise contracts.ShapeError(f"context_lens: row {row} has {context} tokens, {queries} queries")

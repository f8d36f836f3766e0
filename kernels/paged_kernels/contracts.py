"""What each operation accepts: one validator an operation, the same for every implementation.

Owns the checks of shapes, dtypes, devices and host-side bounds, and the errors they raise; knows no
implementation. Invariant: a validator reads only what the host already knows, so it never waits for a device.
"""

import math

from torch import Tensor, bfloat16, dtype, float16, float32, float64, int32, int64

from paged_kernels import fp8_pool

MAX_BLOCK_SIZE = 4096
MAX_HEAD_DIM = 256
MAX_WINDOW = 2**31 - 1
FLOAT_DTYPES: tuple[dtype, ...] = (float64, float32, bfloat16, float16)
POOL_DTYPES = (*FLOAT_DTYPES, fp8_pool.DTYPE)
INDEX_DTYPES: tuple[dtype, ...] = (int32, int64)


# KernelError
#   ArgumentError              an argument breaks the contract of its operation
#     ShapeError               wrong number of dimensions, or sizes that do not fit together
#     DtypeError               a dtype that the operation does not take
#     DeviceError              tensors that do not lie on one device
#     LayoutError              strides that the operation cannot address
#   BackendUnavailableError    a kernel asked for by name cannot run here
class KernelError(Exception):
    """Root of everything this package raises on purpose."""


class ArgumentError(KernelError, ValueError):
    """An argument breaks the contract of its operation; the text names it, its value and the limit."""


class ShapeError(ArgumentError):
    """A wrong number of dimensions, or sizes that do not fit together."""


class DtypeError(ArgumentError):
    """A dtype that the operation does not take."""


class DeviceError(ArgumentError):
    """Tensors of one call do not lie on one device."""


class LayoutError(ArgumentError):
    """Strides that the operation cannot address."""


class BackendUnavailableError(KernelError, RuntimeError):
    """A kernel asked for by name cannot run on this machine, device, dtype or shape."""


def _need_dims(name: str, tensor: Tensor, dims: int, meaning: str) -> None:
    if tensor.dim() != dims:
        raise ShapeError(f"{name}: shape {list(tensor.shape)}, expected {meaning}")


def _need_index(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in INDEX_DTYPES:
        raise DtypeError(f"{name}: dtype {tensor.dtype}, expected int32 or int64")


def _need_int32(name: str, tensor: Tensor) -> None:
    if tensor.dtype != int32:
        raise DtypeError(f"{name}: dtype {tensor.dtype}, expected int32")


def _need_device(reference: Tensor, **others: Tensor) -> None:
    for name, tensor in others.items():
        if tensor.device != reference.device:
            raise DeviceError(f"{name}: on {tensor.device}, expected {reference.device} like the pool")


def _need_pool(k_pool: Tensor, v_pool: Tensor) -> tuple[int, int, int]:
    """Check both pools [B, bs, Hkv, D]; return (block_size, kv_heads, head_dim)."""
    shape = k_pool.shape
    _need_dims("k_pool", k_pool, 4, "[blocks, block_size, kv_heads, head_dim]")
    if v_pool.shape != shape:
        raise ShapeError(f"v_pool: shape {list(v_pool.shape)}, expected that of k_pool {list(shape)}")
    if k_pool.dtype not in POOL_DTYPES:
        raise DtypeError(f"k_pool: dtype {k_pool.dtype}, expected one of {list(POOL_DTYPES)}")
    if v_pool.dtype != k_pool.dtype:
        raise DtypeError(f"v_pool: dtype {v_pool.dtype}, expected {k_pool.dtype} like k_pool")
    if v_pool.device != k_pool.device:
        raise DeviceError(f"v_pool: on {v_pool.device}, expected {k_pool.device} like k_pool")
    if v_pool.stride() != k_pool.stride() or k_pool.stride(3) != 1:
        raise LayoutError(
            f"k_pool, v_pool: strides {k_pool.stride()} and {v_pool.stride()}; "
            "expected equal strides with head_dim contiguous"
        )
    _, block_size, kv_heads, head_dim = shape
    if not 1 <= block_size <= MAX_BLOCK_SIZE:
        raise ShapeError(f"k_pool: block_size {block_size}, expected 1..{MAX_BLOCK_SIZE}")
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ShapeError(f"k_pool: head_dim {head_dim}, expected 1..{MAX_HEAD_DIM}")
    if kv_heads < 1:
        raise ShapeError(f"k_pool: kv_heads {kv_heads}, expected at least 1")
    if fp8_pool.is_fp8(k_pool) and not fp8_pool.has_exponents(k_pool):
        raise LayoutError(
            f"k_pool, v_pool: strides {k_pool.stride()}; expected those of fp8_pool.values_of, with exponents"
        )
    return block_size, kv_heads, head_dim


def _need_dtype_of_pool(name: str, tensor: Tensor, pool: Tensor) -> None:
    if fp8_pool.is_fp8(pool):
        if tensor.dtype not in FLOAT_DTYPES:
            raise DtypeError(f"{name}: dtype {tensor.dtype}, expected one of {list(FLOAT_DTYPES)}")
    elif tensor.dtype != pool.dtype:
        raise DtypeError(f"{name}: dtype {tensor.dtype}, expected {pool.dtype} like the pool")


def check_store_kvcache(
    key: Tensor, value: Tensor, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor
) -> None:
    """Check the arguments of store_kvcache: key, value [T, Hkv, D]; pools [B, bs, Hkv, D]; slot_mapping [T].

    Raises ShapeError, DtypeError, DeviceError or LayoutError.
    """
    _, kv_heads, head_dim = _need_pool(k_pool, v_pool)
    for name, tensor in (("key", key), ("value", value)):
        _need_dims(name, tensor, 3, "[tokens, kv_heads, head_dim]")
        if tensor.shape[1] != kv_heads or tensor.shape[2] != head_dim:
            raise ShapeError(
                f"{name}: shape {list(tensor.shape)}, the pool has kv_heads {kv_heads}, head_dim {head_dim}"
            )
        _need_dtype_of_pool(name, tensor, k_pool)
        if tensor.stride(2) != 1 and head_dim > 1:
            raise LayoutError(f"{name}: strides {tensor.stride()}, expected head_dim contiguous")
    _need_dims("slot_mapping", slot_mapping, 1, "[tokens]")
    _need_index("slot_mapping", slot_mapping)
    tokens = key.shape[0]
    if value.shape[0] != tokens or slot_mapping.shape[0] != tokens:
        raise ShapeError(
            f"key, value, slot_mapping: {tokens}, {value.shape[0]}, {slot_mapping.shape[0]} tokens, "
            "expected equal"
        )
    _need_device(k_pool, key=key, value=value, slot_mapping=slot_mapping)


def check_paged_attention(
    query: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_tables: Tensor,
    cu_query_lens: Tensor,
    context_lens: Tensor,
    max_query_len: int,
    max_context_len: int,
    out: Tensor | None,
    window: int = 0,
    softcap: float = 0.0,
) -> None:
    """Check the arguments of paged_attention (see torch_impl.paged_attention for their meaning).

    Raises ShapeError, DtypeError, DeviceError or LayoutError; ArgumentError for window and softcap.
    """
    if not 0 <= window <= MAX_WINDOW:
        raise ArgumentError(f"window: {window}, expected 0 (none) to {MAX_WINDOW} tokens")
    if not 0 <= softcap < math.inf:
        raise ArgumentError(f"softcap: {softcap}, expected 0 (none) or a positive finite number")
    block_size, kv_heads, head_dim = _need_pool(k_pool, v_pool)
    _need_dims("query", query, 3, "[tokens, query_heads, head_dim]")
    query_heads = query.shape[1]
    if query.shape[2] != head_dim:
        raise ShapeError(f"query: head_dim {query.shape[2]}, the pool has {head_dim}")
    if query_heads < 1 or query_heads % kv_heads:
        raise ShapeError(f"query: {query_heads} heads, expected a multiple of kv_heads {kv_heads}")
    _need_dtype_of_pool("query", query, k_pool)
    if query.stride(2) != 1 and head_dim > 1:
        raise LayoutError(f"query: strides {query.stride()}, expected head_dim contiguous")
    _check_rows(block_tables, cu_query_lens, context_lens)
    _need_device(
        k_pool, query=query, block_tables=block_tables, cu_query_lens=cu_query_lens, context_lens=context_lens
    )
    if max_context_len > block_tables.shape[1] * block_size:
        raise ShapeError(
            f"max_context_len: {max_context_len} tokens, block_tables name only "
            f"{block_tables.shape[1]} blocks of {block_size}"
        )
    if not 0 <= max_query_len <= max_context_len:
        raise ShapeError(f"max_query_len: {max_query_len}, expected 0..max_context_len {max_context_len}")
    if out is not None:
        _check_out(out, query)


def check_full_attention(window: int, softcap: float) -> None:
    """Refuses what a kernel without windows and soft caps would answer wrongly. Raises ArgumentError."""
    if window:
        raise ArgumentError(f"window: {window}, this kernel attends to whole contexts only")
    if softcap:
        raise ArgumentError(f"softcap: {softcap}, this kernel has none")


def _check_rows(block_tables: Tensor, cu_query_lens: Tensor, context_lens: Tensor) -> None:
    _need_dims("block_tables", block_tables, 2, "[rows, blocks]")
    _need_dims("cu_query_lens", cu_query_lens, 1, "[rows + 1]")
    _need_dims("context_lens", context_lens, 1, "[rows]")
    _need_int32("block_tables", block_tables)
    _need_int32("cu_query_lens", cu_query_lens)
    _need_int32("context_lens", context_lens)
    rows = context_lens.shape[0]
    if block_tables.shape[0] != rows or cu_query_lens.shape[0] != rows + 1:
        raise ShapeError(
            f"block_tables, cu_query_lens, context_lens: {block_tables.shape[0]}, {cu_query_lens.shape[0]}, "
            f"{rows} entries, expected R, R + 1, R"
        )
    if block_tables.stride(1) != 1 and block_tables.shape[1] > 1:
        raise LayoutError(f"block_tables: strides {block_tables.stride()}, expected each row contiguous")


def _check_out(out: Tensor, query: Tensor) -> None:
    if out.shape != query.shape:
        raise ShapeError(f"out: shape {list(out.shape)}, expected that of query {list(query.shape)}")
    if out.dtype != query.dtype:
        raise DtypeError(f"out: dtype {out.dtype}, expected {query.dtype} like query")
    if out.device != query.device:
        raise DeviceError(f"out: on {out.device}, expected {query.device} like query")
    if out.stride(2) != 1 and out.shape[2] > 1:
        raise LayoutError(f"out: strides {out.stride()}, expected head_dim contiguous")


def _check_whole_pool(kv_pool: Tensor) -> None:
    if kv_pool.dim() not in (4, 6):
        raise ShapeError(
            f"kv_pool: shape {list(kv_pool.shape)}, expected [2, layers, blocks, block_size, kv_heads, "
            "head_dim] or, in bytes, [2, layers, blocks, block_bytes]"
        )
    if kv_pool.shape[0] != 2:
        raise ShapeError(f"kv_pool: first size {kv_pool.shape[0]}, expected 2 (K and V)")
    if not kv_pool.is_contiguous():
        raise LayoutError(f"kv_pool: strides {kv_pool.stride()}, expected contiguous")


def check_copy_blocks(kv_pool: Tensor, pairs: Tensor) -> None:
    """Check kv_pool [2, L, B, bs, H, D] or [2, L, B, bytes] and pairs [N, 2].

    Raises ShapeError, DtypeError, DeviceError, LayoutError.
    """
    _check_whole_pool(kv_pool)
    _need_dims("pairs", pairs, 2, "[copies, 2] of (source, destination)")
    if pairs.shape[1] != 2:
        raise ShapeError(f"pairs: shape {list(pairs.shape)}, expected [copies, 2] of (source, destination)")
    _need_index("pairs", pairs)
    _need_device(kv_pool, pairs=pairs)


def check_zero_blocks(kv_pool: Tensor, blocks: Tensor) -> None:
    """Check kv_pool [2, L, B, bs, H, D] or [2, L, B, bytes] and blocks [N].

    Raises ShapeError, DtypeError, DeviceError, LayoutError.
    """
    _check_whole_pool(kv_pool)
    _need_dims("blocks", blocks, 1, "[blocks]")
    _need_index("blocks", blocks)
    _need_device(kv_pool, blocks=blocks)

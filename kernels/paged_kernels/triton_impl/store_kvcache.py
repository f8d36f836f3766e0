# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""store_kvcache as a Triton kernel: one program writes K and V of one token into its slot.

Owns the kernel and its launch; knows nothing of blocks, only slots. Invariant: a negative slot writes
nothing, and addresses are 64-bit, so that the pool may hold more than 2^31 elements.
"""

import triton
import triton.language as tl
from torch import Tensor

from paged_kernels import contracts


@triton.jit
def _store_kernel(
    key,
    value,
    k_pool,
    v_pool,
    slot_mapping,
    kv_heads,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    block_size,
    block_stride,
    slot_stride,
    head_stride,
    head_dim: tl.constexpr,
    tile_heads: tl.constexpr,
    tile_dims: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot < 0:
        return
    target = slot // block_size * block_stride + slot % block_size * slot_stride
    dims = tl.arange(0, tile_dims)[None, :]
    for first in range(0, kv_heads, tile_heads):
        heads = first + tl.arange(0, tile_heads)[:, None]
        mask = (heads < kv_heads) & (dims < head_dim)
        into = target + heads * head_stride + dims
        source = key + token * key_token_stride + heads * key_head_stride + dims
        tl.store(k_pool + into, tl.load(source, mask=mask), mask=mask)
        source = value + token * value_token_stride + heads * value_head_stride + dims
        tl.store(v_pool + into, tl.load(source, mask=mask), mask=mask)


def store_kvcache(key: Tensor, value: Tensor, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor) -> None:
    """Write K and V of each token into its slot; arguments as in torch_impl.store_kvcache.

    A slot outside the pool is not checked. Raises contracts.ArgumentError. The idea of writing through a slot
    mapping is PagedAttention's (arXiv 2309.06180).
    """
    contracts.check_store_kvcache(key, value, k_pool, v_pool, slot_mapping)
    tokens, kv_heads, head_dim = key.shape
    if tokens == 0:
        return
    slot_mapping = slot_mapping.contiguous()
    tile_dims = triton.next_power_of_2(head_dim)
    tile_heads = min(triton.next_power_of_2(kv_heads), max(1, 2048 // tile_dims))
    _store_kernel[(tokens,)](
        key,
        value,
        k_pool,
        v_pool,
        slot_mapping,
        kv_heads,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        k_pool.shape[1],
        k_pool.stride(0),
        k_pool.stride(1),
        k_pool.stride(2),
        head_dim,
        tile_heads,
        tile_dims,
    )

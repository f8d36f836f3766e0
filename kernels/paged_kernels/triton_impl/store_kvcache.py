# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""store_kvcache as a Triton kernel: one program writes K and V of one token into its slot.

Owns the kernel and its launch; knows nothing of blocks, only slots. Invariant: a negative slot writes
nothing, and addresses are 64-bit, so that the pool may hold more than 2^31 elements.
"""

import triton
import triton.language as tl
from torch import Tensor

from paged_kernels import contracts
from paged_kernels.triton_impl import fp8


# fmt: off
@triton.jit
def _store_heads(
    source, pool, exponents, heads, dims, kv_heads, head_stride, block_size,
    head_dim: tl.constexpr, scaled: tl.constexpr,
):
    """heads [h] of one token into one slot, at pool and, where scaled, at exponents."""
    mask = (heads < kv_heads)[:, None] & (dims < head_dim)[None, :]
    into = pool + heads[:, None] * head_stride + dims[None, :]
    values = tl.load(source, mask=mask, other=0.0)
    if scaled:
        wide = values.to(tl.float32)
        powers = fp8.exponents_for(tl.max(fp8.magnitudes(wide), 1))
        tl.store(into, fp8.to_e4m3(wide, powers[:, None]), mask=mask)
        tl.store(exponents + heads * block_size, powers.to(tl.uint8), mask=heads < kv_heads)
    else:
        tl.store(into, values, mask=mask)


@triton.jit(do_not_specialize=["kv_heads", "block_size"])
def _store_kernel(
    key, value, k_pool, v_pool, k_exponents, v_exponents, slot_mapping, kv_heads,
    key_token_stride, key_head_stride, value_token_stride, value_head_stride,
    block_size, block_stride, slot_stride, head_stride,
    head_dim: tl.constexpr, tile_heads: tl.constexpr, tile_dims: tl.constexpr, scaled: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot < 0:
        return
    block, offset = slot // block_size * block_stride, slot % block_size
    target, exponent = block + offset * slot_stride, block + offset
    dims = tl.arange(0, tile_dims)
    for first in range(0, kv_heads, tile_heads):
        heads = first + tl.arange(0, tile_heads)
        source = key + token * key_token_stride + heads[:, None] * key_head_stride + dims[None, :]
        _store_heads(
            source, k_pool + target, k_exponents + exponent, heads, dims, kv_heads, head_stride, block_size,
            head_dim, scaled,
        )
        source = value + token * value_token_stride + heads[:, None] * value_head_stride + dims[None, :]
        _store_heads(
            source, v_pool + target, v_exponents + exponent, heads, dims, kv_heads, head_stride, block_size,
            head_dim, scaled,
        )
# fmt: on


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
    pools = fp8.Pools.of(k_pool, v_pool)
    _store_kernel[(tokens,)](
        key,
        value,
        pools.k_bytes,
        pools.v_bytes,
        pools.k_exponents,
        pools.v_exponents,
        slot_mapping,
        kv_heads,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        k_pool.shape[1],
        *k_pool.stride()[:3],
        head_dim,
        tile_heads,
        tile_dims,
        pools.scaled,
    )

# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""copy_blocks and zero_blocks as Triton kernels: whole blocks, every layer of K and V, one launch.

Owns the kernels and their launches; knows nothing of what a block holds. Invariant: bits move unchanged, and
addresses are 64-bit.
"""

import triton
import triton.language as tl
from torch import Tensor

from paged_kernels import contracts

_TILE = 4096


@triton.jit
def _copy_kernel(pool, pairs, block_elements, blocks, tiles, tile: tl.constexpr):
    pair = (tl.program_id(0) // tiles).to(tl.int64)
    offsets = (tl.program_id(0) % tiles) * tile + tl.arange(0, tile)
    mask = offsets < block_elements
    layer = tl.program_id(1).to(tl.int64) * blocks
    source = (layer + tl.load(pairs + 2 * pair)) * block_elements
    target = (layer + tl.load(pairs + 2 * pair + 1)) * block_elements
    tl.store(pool + target + offsets, tl.load(pool + source + offsets, mask=mask), mask=mask)


@triton.jit
def _zero_kernel(pool, ids, block_elements, blocks, tiles, tile: tl.constexpr):
    entry = (tl.program_id(0) // tiles).to(tl.int64)
    offsets = (tl.program_id(0) % tiles) * tile + tl.arange(0, tile)
    target = (tl.program_id(1).to(tl.int64) * blocks + tl.load(ids + entry)) * block_elements
    zeros = tl.zeros([tile], dtype=pool.dtype.element_ty)
    tl.store(pool + target + offsets, zeros, mask=offsets < block_elements)


def _shape(kv_pool: Tensor) -> tuple[int, int, int, int]:
    """(elements of a block in one layer of K, blocks, tiles a block, layers of K and V together)."""
    block_elements = kv_pool.stride(2)
    return block_elements, kv_pool.shape[2], triton.cdiv(block_elements, _TILE), 2 * kv_pool.shape[1]


def copy_blocks(kv_pool: Tensor, pairs: Tensor) -> None:
    """Copy whole blocks; arguments as in torch_impl.copy_blocks, ids outside the pool are not checked.

    Raises contracts.ArgumentError.
    """
    contracts.check_copy_blocks(kv_pool, pairs)
    if pairs.shape[0] == 0:
        return
    elements, blocks, tiles, layers = _shape(kv_pool)
    _copy_kernel[(pairs.shape[0] * tiles, layers)](
        kv_pool, pairs.contiguous(), elements, blocks, tiles, _TILE, num_warps=8
    )


def zero_blocks(kv_pool: Tensor, blocks: Tensor) -> None:
    """Zero whole blocks; arguments as in torch_impl.zero_blocks, ids outside the pool are not checked.

    Raises contracts.ArgumentError.
    """
    contracts.check_zero_blocks(kv_pool, blocks)
    if blocks.shape[0] == 0:
        return
    elements, count, tiles, layers = _shape(kv_pool)
    _zero_kernel[(blocks.shape[0] * tiles, layers)](
        kv_pool, blocks.contiguous(), elements, count, tiles, _TILE, num_warps=8
    )

"""What flash-attn 2 and flash-attn-4 cannot run, from what is known before anything is launched.

Owns these rules; knows neither package by import. Pure. Invariant: an obstacle is one line that names the
setting or the model's property, its value and the limit.
"""

from dataclasses import dataclass

import torch

FLASH2, FLASH4 = "flash-attn 2", "flash-attn-4"
FLASH2_BLOCK = 256
"""flash-attn 2 takes block sizes that are multiples of this."""
FLASH4_WHOLE_BLOCK = 128
"""flash-attn-4 loads blocks of this size whole for head sizes up to 192: the keys of one of its tiles."""
_DTYPES = (torch.bfloat16, torch.float16)
_MOST_HEAD_DIM = 256
_HEAD_DIM_STEP = 8


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """A model's attention over one pool. windows: layers that see a part of the context only; capability: of
    the device, (0, 0) where it is no CUDA device. dtype is the pool's; query_dtype None: the same.
    """

    dtype: torch.dtype
    query_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    windows: int
    softcap: float
    capability: tuple[int, int]
    query_dtype: torch.dtype | None = None


def flash2_obstacle(shape: AttentionShape) -> str:
    """Why flash-attn 2 cannot run this, or nothing."""
    common = _common_obstacle(shape)
    if common:
        return common
    if shape.capability < (8, 0):
        return f"device: {_capability(shape)}, it needs 8.0"
    if shape.block_size % FLASH2_BLOCK:
        return f"block_size: {shape.block_size}, it takes multiples of {FLASH2_BLOCK}"
    return ""


def flash4_obstacle(shape: AttentionShape) -> str:
    """Why flash-attn-4 cannot run this, or nothing.

    Blocks that are loaded whole need finite numbers in their unused slots: a weight of 0 times NaN is NaN.
    Slots of a sequence that ended before anybody saw that it computed NaN are not zeroed, so such sizes are
    refused.
    """
    common = _common_obstacle(shape)
    if common:
        return common
    if shape.capability[0] not in (9, 10):
        return f"device: {_capability(shape)}, its paged kernels need 9.x or 10.x"
    if shape.block_size == FLASH4_WHOLE_BLOCK and shape.head_dim <= 192:
        return (
            f"block_size: {shape.block_size}, it loads blocks of {FLASH4_WHOLE_BLOCK} tokens whole, and "
            "unused slots may hold NaN; take another size"
        )
    return ""


def _common_obstacle(shape: AttentionShape) -> str:
    if shape.capability == (0, 0):
        return "device: it needs CUDA"
    if shape.dtype not in _DTYPES:
        return f"dtype: {_name(shape.dtype)}, it takes {' and '.join(map(_name, _DTYPES))}"
    if shape.head_dim > _MOST_HEAD_DIM or shape.head_dim % _HEAD_DIM_STEP:
        return f"head_dim: {shape.head_dim}, it takes multiples of {_HEAD_DIM_STEP} up to {_MOST_HEAD_DIM}"
    if shape.windows:
        return f"sliding windows: in {shape.windows} layers, it is used for full attention only"
    if shape.softcap:
        return f"attention soft cap: {shape.softcap:g}, it is used without one only"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _capability(shape: AttentionShape) -> str:
    return f"compute capability {shape.capability[0]}.{shape.capability[1]}"

"""The KV pool: how many blocks fit, and the tensor [2, layer, block, slot, kv_head, head_dim] that holds
them, or of e4m3 [2, layer, block, byte].

Owns the pool's size and memory; knows no sequence and no step. Invariant: one block more than announced is
allocated, the null block (id num_blocks), which only padding may touch.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker.errors import SettingsError
from gpu_worker.models.registry import ModelShape
from paged_kernels import fp8_pool

LAYOUT = "kv,layer,block,slot,kv_head,head_dim"
KV_CACHE_DTYPES = {"fp8_e4m3": fp8_pool.DTYPE}
"""Values of --kv-cache-dtype other than auto, which means --dtype."""
MAX_SLOTS = 2**31 - 1
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """What the device says now, in bytes, with the weights already loaded.

    total: the device's memory, or the limit set on this process. free: what this process could still take.
    """

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """What the pool's size depends on besides memory. share: of `total`, at most this goes to this process.

    num_blocks: an explicit count, or None. max_useful_blocks: no more, though there were room.
    """

    bytes_per_block: int
    block_size: int
    share: float
    weight_bytes: int
    activation_bytes: int
    max_useful_blocks: int | None = None
    num_blocks: int | None = None
    graph_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The answer, in blocks and bytes. slack: the part of the budget that nothing uses."""

    num_blocks: int
    total_bytes: int
    budget_bytes: int
    weight_bytes: int
    activation_bytes: int
    pool_bytes: int
    slack_bytes: int
    graph_bytes: int = 0


def size_pool(reading: MemoryReading, request: PoolRequest) -> PoolSize:
    """How many blocks to allocate. Pure. Raises SettingsError with the numbers and the knob.

    The budget is share x total, but never more than what is free plus what the weights already took.
    """
    budget = min(int(reading.total * request.share), reading.free + request.weight_bytes)
    fixed = request.weight_bytes + request.activation_bytes + request.graph_bytes
    if request.num_blocks is None:
        num_blocks = _fitting(budget - fixed, reading, request)
    else:
        num_blocks = request.num_blocks
        _check_explicit(num_blocks, reading, request)
        budget = max(budget, fixed + (num_blocks + 1) * request.bytes_per_block)
    pool_bytes = (num_blocks + 1) * request.bytes_per_block
    return PoolSize(
        num_blocks=num_blocks,
        total_bytes=reading.total,
        budget_bytes=budget,
        weight_bytes=request.weight_bytes,
        activation_bytes=request.activation_bytes,
        pool_bytes=pool_bytes,
        slack_bytes=budget - fixed - pool_bytes,
        graph_bytes=request.graph_bytes,
    )


def _fitting(room: int, reading: MemoryReading, request: PoolRequest) -> int:
    fitting = room // request.bytes_per_block - 1
    if fitting < 1:
        raise SettingsError(
            f"no room for a KV pool: {request.share:g} of {_gib(reading.total)} ({_gib(reading.free)} free) "
            f"less weights {_gib(request.weight_bytes)}, activations {_gib(request.activation_bytes)} and "
            f"graphs {_gib(request.graph_bytes)} leaves {_gib(room)}; a block of {request.block_size} tokens "
            f"takes {_gib(request.bytes_per_block)} and two are the least; raise --gpu-memory-utilization, "
            "or lower --max-num-batched-tokens or --block-size"
        )
    fitting = min(fitting, MAX_SLOTS // request.block_size - 1)
    return fitting if request.max_useful_blocks is None else min(fitting, request.max_useful_blocks)


def _check_explicit(num_blocks: int, reading: MemoryReading, request: PoolRequest) -> None:
    if (num_blocks + 1) * request.block_size > MAX_SLOTS:
        limit = MAX_SLOTS // request.block_size - 1
        raise SettingsError(
            f"must be at most {limit}: {MAX_SLOTS} slots in blocks of {request.block_size} tokens",
            "num_blocks",
        )
    wanted = (num_blocks + 1) * request.bytes_per_block
    room = reading.free - request.activation_bytes - request.graph_bytes
    if wanted > room:
        raise SettingsError(
            f"so many blocks take {_gib(wanted)}, but {_gib(reading.free)} are free and "
            f"activations and graphs take {_gib(request.activation_bytes + request.graph_bytes)}; at most "
            f"{max(room // request.bytes_per_block - 1, 0)} blocks fit",
            "num_blocks",
        )


def _gib(count: int) -> str:
    return f"{count / GIB:.3g} GiB"


def bytes_per_block(config: ModelShape, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of K and V of one block in all layers; dtype: of the pool."""
    if dtype == fp8_pool.DTYPE:
        block = fp8_pool.block_bytes(block_size, config.num_kv_heads, config.head_dim)
        return 2 * config.num_layers * block
    return 2 * config.num_layers * block_size * config.kv_size * dtype.itemsize


class KvPool:
    """The allocated pool of num_blocks + 1 blocks, zeroed. `keys(layer)` and `values(layer)` are [B, bs, H,
    D]; of e4m3 they are views into the blocks' bytes, with the exponents behind them (see fp8_pool).
    """

    def __init__(
        self, config: ModelShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        heads = (block_size, config.num_kv_heads, config.head_dim)
        blocks = (2, config.num_layers, num_blocks + 1)
        if dtype == fp8_pool.DTYPE:
            self.tensor = _zeros((*blocks, fp8_pool.block_bytes(*heads)), torch.uint8, device)
            layers = [[fp8_pool.values_of(layer, *heads) for layer in half] for half in self.tensor]
        else:
            self.tensor = _zeros((*blocks, *heads), dtype, device)
            layers = [list(half.unbind(0)) for half in self.tensor]
        self._keys, self._values = layers

    def keys(self, layer: int) -> Tensor:
        return self._keys[layer]

    def values(self, layer: int) -> Tensor:
        return self._values[layer]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeroed memory; on the CPU the system's untouched zero memory, which costs nothing until written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = np.zeros(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)

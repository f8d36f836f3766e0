# mypy: disable-error-code="no-untyped-call"
"""The host tier: blocks in host memory, and the copies between them and the KV pool.

Owns the host memory, the streams of the copies and what of them is not acknowledged yet; knows no sequence.
Invariant: a transfer out reads its blocks after every step launched before it, a transfer in is seen by every
kernel launched after it, and one is acknowledged only when its last byte has arrived.

A host block is one run of bytes [2, layer, slot, kv_head, head_dim] (of an e4m3 pool [2, layer, byte]), so
that a copy over the bus is long; blocks are gathered from the pool's layout, and scattered into it, on the
device, through a staging buffer.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker import host
from gpu_worker.errors import SettingsError
from gpu_worker.kv_pool import GIB, KvPool
from gpu_worker.wire import Int32Array

DEFAULT_SWAP_SPACE = 4.0
"""GiB, on CUDA."""
STAGING_BYTES = 64 << 20
"""Device memory of each of the three staging buffers: one for transfers out, two for those in."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Steps whose transfers out are done, and the seconds that they took together."""

    step_ids: tuple[int, ...] = ()
    seconds: float = 0.0


NOTHING = Acknowledged()


class HostPool(Protocol):
    """num_blocks host blocks. `acknowledge` may be called from another thread than the rest."""

    num_blocks: int

    def swap_out(self, step_id: int, pairs: Int32Array) -> None:
        """pairs [N, 2]: device block to host block, of a step about to be launched."""

    def swap_in(self, pairs: Int32Array) -> None:
        """pairs [N, 2]: host block to device block, for what is launched next."""

    def acknowledge(self, step_id: int, wait: bool) -> Acknowledged:
        """Transfers out of steps up to this one that are done and not named before; wait: all of them."""

    def reset(self) -> None:
        """Forgets what is not acknowledged; the device stands still."""


def num_host_blocks(swap_space: float, bytes_per_block: int, free_bytes: int, held_bytes: int = 0) -> int:
    """Blocks of a host tier of swap_space GiB. held_bytes: what else will be taken of the free memory.

    Raises SettingsError with the numbers when it holds no block, or more than the host has free.
    """
    wanted = swap_space * GIB
    if not wanted:
        return 0
    room = free_bytes - held_bytes
    if wanted > room:
        less = f", {held_bytes / GIB:.3g} GiB of them for the KV pool and the weights" if held_bytes else ""
        raise SettingsError(
            f"{free_bytes / GIB:.3g} GiB of host memory are free{less}; "
            f"must be at most {max(room, 0) / GIB:.3g} GiB (0: no host tier)",
            "swap_space",
        )
    if wanted < bytes_per_block:
        raise SettingsError(
            f"must be 0, or at least {bytes_per_block / GIB:.3g} GiB, one block", "swap_space"
        )
    return int(wanted // bytes_per_block)


def wanted_host_blocks(swap_space: float | None, is_shared: bool, bytes_per_block: int) -> int:
    """Blocks of a host tier of swap_space GiB, or of the default, or of what free memory can spare.

    is_shared: the KV pool lies in the host's memory too. Raises SettingsError as `num_host_blocks`.
    """
    free = host.memory()[1]
    if swap_space is None:
        swap_space = 0.0 if is_shared else min(DEFAULT_SWAP_SPACE, free / 4 / GIB)
    return num_host_blocks(swap_space, bytes_per_block, free)


def staging_bytes(bytes_per_block: int) -> int:
    """Device memory that the host tier of a CUDA device needs; a staging buffer holds at least one block."""
    return 3 * max(STAGING_BYTES, bytes_per_block)


def open_host_pool(pool: KvPool, num_blocks: int) -> HostPool | None:
    """The host tier of a pool, None for no blocks. Raises SettingsError when the driver cannot pin it."""
    if not num_blocks:
        return None
    if pool.tensor.device.type == "cuda":
        return CudaHostPool(pool, num_blocks)
    return CpuHostPool(pool, num_blocks)


def _host_memory(pool: KvPool, num_blocks: int) -> Tensor:
    """[num_blocks, 2, layers, ...] of untouched zero memory, a block as in the pool."""
    two, layers, _, *rest = pool.tensor.shape
    shape = (num_blocks, two, layers, *rest)
    dtype = pool.tensor.dtype
    raw = np.zeros(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


def _by_block(pool: KvPool) -> Tensor:
    """The pool as [blocks, 2, layers, ...], a view."""
    return pool.tensor.movedim(2, 0)


class CpuHostPool:
    """On a CPU: copies in the launching thread, done when they return."""

    def __init__(self, pool: KvPool, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._device = _by_block(pool)
        self._host = _host_memory(pool, num_blocks)
        self._done: deque[tuple[int, float]] = deque()

    def swap_out(self, step_id: int, pairs: Int32Array) -> None:
        started = time.perf_counter()
        self._host[_index(pairs[:, 1])] = self._device[_index(pairs[:, 0])]
        self._done.append((step_id, time.perf_counter() - started))

    def swap_in(self, pairs: Int32Array) -> None:
        self._device[_index(pairs[:, 1])] = self._host[_index(pairs[:, 0])]

    def acknowledge(self, step_id: int, wait: bool) -> Acknowledged:
        steps: list[int] = []
        seconds = 0.0
        while self._done and self._done[0][0] <= step_id:
            step, took = self._done.popleft()
            steps.append(step)
            seconds += took
        return Acknowledged(tuple(steps), seconds)

    def reset(self) -> None:
        self._done.clear()


def _index(ids: Int32Array) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))


@dataclass(frozen=True, slots=True)
class _UnderWay:
    step_id: int
    start: Any
    end: Any


class CudaHostPool:
    """On CUDA: pinned memory, one stream for each direction.

    A transfer out waits for the steps launched before it and runs beside those after. Of a transfer in, the
    copy over the bus into staging may run beside earlier steps; only the scatter takes its turn on the
    compute stream.
    """

    def __init__(self, pool: KvPool, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._device = _by_block(pool)
        self._host = _host_memory(pool, num_blocks)
        _pin(self._host)
        block_bytes = self._host[0].numel() * self._host.element_size()
        self._chunk = max(1, STAGING_BYTES // block_bytes)
        shape = (self._chunk, *self._host.shape[1:])
        where, dtype = pool.tensor.device, pool.tensor.dtype
        self._leaving = torch.empty(shape, dtype=dtype, device=where)
        self._coming = [torch.empty(shape, dtype=dtype, device=where) for _ in range(2)]
        self._free = [torch.cuda.Event(), torch.cuda.Event()]
        self._out = torch.cuda.Stream(where)
        self._in = torch.cuda.Stream(where)
        self._lock = threading.Lock()
        self._under_way: deque[_UnderWay] = deque()

    def swap_out(self, step_id: int, pairs: Int32Array) -> None:
        ids = self._upload(pairs[:, 0])
        self._out.wait_stream(torch.cuda.current_stream())
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._out):
            start.record()
            for first, host_ids in self._chunks(pairs[:, 1]):
                part = self._leaving[: len(host_ids)]
                torch.index_select(self._device, 0, ids[first : first + len(host_ids)], out=part)
                for at, first_host, count in _runs(host_ids):
                    self._host[first_host : first_host + count].copy_(
                        part[at : at + count], non_blocking=True
                    )
            end.record()
        ids.record_stream(self._out)
        with self._lock:
            self._under_way.append(_UnderWay(step_id, start, end))

    def swap_in(self, pairs: Int32Array) -> None:
        compute = torch.cuda.current_stream()
        ids = self._upload(pairs[:, 1])
        self._in.wait_stream(self._out)
        for number, (first, host_ids) in enumerate(self._chunks(pairs[:, 0])):
            buffer, free = self._coming[number % 2], self._free[number % 2]
            part = buffer[: len(host_ids)]
            with torch.cuda.stream(self._in):
                free.wait()
                for at, first_host, count in _runs(host_ids):
                    part[at : at + count].copy_(
                        self._host[first_host : first_host + count], non_blocking=True
                    )
            compute.wait_stream(self._in)
            self._device.index_copy_(0, ids[first : first + len(host_ids)], part)
            free.record(compute)

    def acknowledge(self, step_id: int, wait: bool) -> Acknowledged:
        steps: list[int] = []
        seconds = 0.0
        with self._lock:
            while self._under_way and self._under_way[0].step_id <= step_id:
                first = self._under_way[0]
                if wait:
                    first.end.synchronize()
                elif not first.end.query():
                    break
                self._under_way.popleft()
                steps.append(first.step_id)
                seconds += first.start.elapsed_time(first.end) / 1000
        return Acknowledged(tuple(steps), seconds)

    def reset(self) -> None:
        with self._lock:
            self._under_way.clear()

    def _chunks(self, host_ids: Int32Array) -> list[tuple[int, Int32Array]]:
        """(first pair, host ids) of as many blocks as staging holds."""
        return [
            (first, host_ids[first : first + self._chunk]) for first in range(0, len(host_ids), self._chunk)
        ]

    def _upload(self, ids: Int32Array) -> Tensor:
        return _index(ids).pin_memory().to(self._device.device, non_blocking=True)


def _runs(ids: Int32Array) -> list[tuple[int, int, int]]:
    """(index of the first, its id, count) of each run of consecutive ids."""
    breaks: npt.NDArray[np.int64] = np.flatnonzero(np.diff(ids) != 1) + 1
    starts = [0, *breaks.tolist()]
    ends = [*breaks.tolist(), len(ids)]
    return [(at, int(ids[at]), end - at) for at, end in zip(starts, ends, strict=True)]


def _pin(memory: Tensor) -> None:
    """Pins the pages themselves: torch's allocator of pinned memory would round up to a power of two."""
    runtime: Any = torch.cuda.cudart()
    size = memory.numel() * memory.element_size()
    error = runtime.cudaHostRegister(memory.data_ptr(), size, 0)
    if int(error) != 0:
        raise SettingsError(
            f"the driver cannot pin {size / GIB:.3g} GiB of host memory "
            f"({runtime.cudaGetErrorString(error)}); lower it",
            "swap_space",
        )

"""The one door to the hardware: CPU and CUDA behind the same few calls.

Owns device choice, memory readings, uploads, downloads and time marks; knows no model and no plan.
Invariant: only `Marker.wait`, `Download.read` and `synchronize` block on the device; the launching thread
calls none of them.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker import host
from gpu_worker.errors import SettingsError
from gpu_worker.kv_pool import MemoryReading

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_LEAST_DOWNLOAD = 1024
CPU_SHARE, CUDA_SHARE = 0.25, 0.9
"""Parts of the device's memory taken by default."""


class Marker(Protocol):
    """A point in the device's order of work."""

    def wait(self) -> None: ...

    def seconds_since(self, earlier: "Marker") -> float: ...


class Download(Protocol):
    """A copy to the host that was started; `read` is legal once a later marker was waited for."""

    def read(self) -> npt.NDArray[np.integer]: ...


class Device(Protocol):
    """What the rest of the worker may ask of the hardware.

    default_share: part of its memory to take. is_shared: other programs live in that memory too.
    """

    torch_device: torch.device
    name: str
    default_share: float
    is_shared: bool

    def default_dtype(self, stored: str) -> tuple[torch.dtype, str]: ...

    def memory(self) -> MemoryReading: ...

    def upload(self, values: npt.NDArray[np.int32] | npt.NDArray[np.float64]) -> Tensor: ...

    def download(self, values: Tensor) -> Download: ...

    def mark(self) -> Marker: ...

    def synchronize(self) -> None: ...

    def is_poisoned_by(self, error: BaseException) -> bool: ...


def open_device(name: str, threads: int | None) -> Device:
    """name: "auto", "cpu" or "cuda". Raises SettingsError when CUDA is asked for and not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return CpuDevice(threads)
    if not torch.cuda.is_available():
        raise SettingsError("torch sees no CUDA device here; must be cpu or auto", "device")
    return CudaDevice()


@dataclass(frozen=True, slots=True)
class _CpuMarker:
    at: float

    def wait(self) -> None:
        """The CPU computes in the launching thread: what is marked is done."""

    def seconds_since(self, earlier: Marker) -> float:
        assert isinstance(earlier, _CpuMarker)
        return self.at - earlier.at


@dataclass(frozen=True, slots=True)
class _HostCopy:
    values: Tensor

    def read(self) -> npt.NDArray[np.integer]:
        copied: npt.NDArray[np.integer] = self.values.numpy()
        return copied


class CpuDevice:
    """The host's cores. threads: torch threads, or None for `host.default_threads`."""

    default_share = CPU_SHARE
    is_shared = True

    def __init__(self, threads: int | None) -> None:
        self.torch_device = torch.device("cpu")
        torch.set_num_threads(threads or host.default_threads())
        self.name = f"cpu ({torch.get_num_threads()} threads)"

    def default_dtype(self, stored: str) -> tuple[torch.dtype, str]:
        """float32. On a CPU with AVX512-BF16, bfloat16 ran at 1.0 times its speed with one row and 1.4 to 1.9
        times from eight rows up; but it flips some 3 % of tokens between batch shapes, so that a preempted
        or recovered request goes on with other tokens. So it must be asked for.
        """
        return torch.float32, "CPU default: tokens do not depend on the batch; --dtype bfloat16 is faster"

    def memory(self) -> MemoryReading:
        """Physical memory, or the cgroup's limit where that is lower."""
        return MemoryReading(*host.memory())

    def upload(self, values: npt.NDArray[np.int32] | npt.NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(values)

    def download(self, values: Tensor) -> Download:
        return _HostCopy(values.clone())

    def mark(self) -> Marker:
        return _CpuMarker(time.perf_counter())

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def is_poisoned_by(self, error: BaseException) -> bool:
        return False


class _CudaMarker:
    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()

    def seconds_since(self, earlier: Marker) -> float:
        assert isinstance(earlier, _CudaMarker)
        return float(earlier._event.elapsed_time(self._event)) / 1000


@dataclass(frozen=True, slots=True)
class _PinnedCopy:
    buffer: Tensor
    count: int
    free: "deque[Tensor]"

    def read(self) -> npt.NDArray[np.integer]:
        """Called at most once: the buffer is then another download's."""
        copied: npt.NDArray[np.integer] = self.buffer[: self.count].numpy().copy()
        self.free.append(self.buffer)
        return copied


class CudaDevice:
    """The current CUDA device. Uploads go through pinned memory that torch reuses once its copy is done."""

    default_share = CUDA_SHARE
    is_shared = False

    def __init__(self) -> None:
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self.name = torch.cuda.get_device_name(self.torch_device)
        self._free: dict[torch.dtype, deque[Tensor]] = {}

    def default_dtype(self, stored: str) -> tuple[torch.dtype, str]:
        """The checkpoint's 16-bit dtype, else bfloat16 where the device has it."""
        if stored in ("bfloat16", "float16"):
            return DTYPES[stored], f"the checkpoint is {stored}"
        if torch.cuda.is_bf16_supported():
            return torch.bfloat16, "CUDA default"
        return torch.float16, "CUDA default; the device has no bfloat16"

    def memory(self) -> MemoryReading:
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return MemoryReading(total, free)

    def upload(self, values: npt.NDArray[np.int32] | npt.NDArray[np.float64]) -> Tensor:
        staged = torch.from_numpy(values).pin_memory()
        return staged.to(self.torch_device, non_blocking=True)

    def download(self, values: Tensor) -> Download:
        """values [N]; their buffer is pinned once and used again after `read`."""
        free = self._free.setdefault(values.dtype, deque())
        host = free.pop() if free else torch.empty(0, dtype=values.dtype)
        if len(host) < len(values):
            host = torch.empty(max(len(values), _LEAST_DOWNLOAD), dtype=values.dtype, pin_memory=True)
        host[: len(values)].copy_(values, non_blocking=True)
        return _PinnedCopy(host, len(values), free)

    def mark(self) -> Marker:
        return _CudaMarker()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def is_poisoned_by(self, error: BaseException) -> bool:
        """Whether no CUDA call of this process can succeed any more (anything but running out of memory)."""
        return isinstance(error, torch.AcceleratorError) and not isinstance(error, torch.OutOfMemoryError)

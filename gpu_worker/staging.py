"""Host memory that steps are packed into and copied from, without waiting for the copies.

Owns a ring of buffers, pinned where there is a CUDA device; knows no layout. Invariant: a buffer is handed
out again only when its last copy is done; if none is free the ring grows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.wire import Int32Array

_FIRST_BUFFERS = 4


@dataclass(slots=True)
class StagingBuffer:
    """`array` and `tensor` are the same int32 memory; `copied` is the event of its last copy."""

    tensor: Tensor
    array: Int32Array
    copied: torch.cuda.Event | None

    def send(self, target: Tensor, count: int) -> None:
        """Starts the copy of the first `count` values into target [>= count], in stream order."""
        target[:count].copy_(self.tensor[:count], non_blocking=True)
        if self.copied is not None:
            self.copied.record()


class Staging:
    """Buffers of `size` int32 each."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._size = size
        self._pinned = device.type == "cuda"
        self._ring = [self._make() for _ in range(_FIRST_BUFFERS)]
        self._next = 0

    def _make(self) -> StagingBuffer:
        tensor = torch.zeros(self._size, dtype=torch.int32, pin_memory=self._pinned)
        event = torch.cuda.Event() if self._pinned else None  # type: ignore[no-untyped-call]
        return StagingBuffer(tensor, tensor.numpy(), event)

    def take(self) -> StagingBuffer:
        """A buffer whose memory may be written."""
        buffer = self._ring[self._next]
        if buffer.copied is not None and not buffer.copied.query():  # type: ignore[no-untyped-call]
            buffer = self._make()
            self._ring.insert(self._next, buffer)
        self._next = (self._next + 1) % len(self._ring)
        return buffer

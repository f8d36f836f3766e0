"""What launches need to know of the device.

Owns its name and its number of multiprocessors; knows no kernel. Invariant: asked once for each device.
"""

import os
from functools import lru_cache

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@lru_cache(maxsize=16)
def units(device: torch.device) -> int:
    """Multiprocessors; 4 for Triton's interpreter."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache(maxsize=16)
def name(device: torch.device) -> str:
    """The device's name, empty for a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


OVERLAP = True
"""Whether kernels start while the one in front of them still runs, where the device can."""


def overlaps(device: torch.device) -> bool:
    """Whether to launch with programmatic dependence: a kernel then waits itself for those before it.

    Every kernel of this package that is launched so waits before it reads what kernels of its step wrote and
    before it writes, and in all its programs, so that waiting for the last kernel is waiting for all. Weights
    and what is copied to the device before a step (lengths, positions, slots) it may read earlier.

    A kernel that starts knows only that all in front of it have started. It may read before it waits what is
    settled: what was written in front of a kernel (rotate_store with `settles`) that lets the next one start
    only behind its own wait, when all in front of it have ended. See docs/adr/0021.
    """
    return OVERLAP and capability(device) >= (9, 0)


@lru_cache(maxsize=16)
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability, (0, 0) for a CPU."""
    if device.type != "cuda":
        return 0, 0
    return torch.cuda.get_device_capability(device)


def launch_options(overlap: bool) -> dict[str, bool]:
    """Triton's launch options for `overlap`; the interpreter knows none."""
    return {"launch_pdl": True} if overlap else {}

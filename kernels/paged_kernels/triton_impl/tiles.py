"""Tiles of attention: the shapes of its launches, by dtype, head_dim, group and device.

Owns what was measured on devices; knows no kernel. Invariant: a tile holds all query heads of a KV head.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import triton

from paged_kernels.triton_impl import machine


@dataclass(frozen=True)
class Tile:
    """A kernel's shape: block_m lines (query token x query head) by block_n keys; warps, pipeline stages.

    registers: of a thread of decodes by a list, at most, so that as many programs are resident as work is cut
    for; 0: any number.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    registers: int = 0


@dataclass(frozen=True)
class Tiles:
    """The tile of rows so short that one tile holds them (decodes), and that of longer rows.

    few: instead of `short`, with as many lines, where there is less than one program for each half of a
    multiprocessor.
    """

    short: Tile
    long: Tile
    few: Tile | None = None


@lru_cache(maxsize=256)
def choose_tiles(dtype: torch.dtype, head_dim: int, group: int) -> Tiles:
    """Tiles for a dtype, head_dim and number of query heads per KV head.

    Short rows are bound by bandwidth: the fewest lines that hold the group. Long rows are bound by
    arithmetic: as many lines as registers and shared memory allow. Float32 products take no matrix unit, so
    their tiles are small.
    """
    width = triton.next_power_of_2(head_dim)
    lines = max(16, triton.next_power_of_2(group))
    if dtype == torch.float32:
        return Tiles(Tile(lines, 32 if width <= 128 else 16, 8, 2), Tile(max(32, lines), 16, 8, 2))
    short = Tile(lines, 64 if width <= 128 else 32, 4, 3)
    if width <= 128:
        return Tiles(short, Tile(max(128, lines), 64, 8, 3))
    return Tiles(short, Tile(max(64, lines), 64, 8, 2))


# By the device's name: (short, few, long) tiles of 16-bit dtypes, head_dim 65..128 and groups up to 16.
# Measured by benchmarks/gpu_check.py; see benchmarks/gpu-notes.md.
_TUNED = {"NVIDIA H200": (Tile(16, 64, 4, 4, 128), Tile(16, 64, 4, 7), Tile(128, 128, 8, 3))}
# The same over an e4m3 pool; benchmarks/gpu_fp8.py measures them.
_TUNED_FP8 = {"NVIDIA H200": (Tile(16, 64, 2, 5), Tile(16, 128, 4, 5), Tile(64, 128, 4, 2))}


@lru_cache(maxsize=256)
def tiles_for(
    device: torch.device, dtype: torch.dtype, head_dim: int, group: int, fp8_pool: bool = False
) -> Tiles:
    """choose_tiles, or what was measured to be faster on this very device."""
    tiles = choose_tiles(dtype, head_dim, group)
    tuned = (_TUNED_FP8 if fp8_pool else _TUNED).get(machine.name(device))
    if tuned is None or dtype == torch.float32 or not 64 < head_dim <= 128:
        return tiles
    short, few, long = tuned
    lines = tiles.short.block_m
    if lines > 16:
        return replace(tiles, long=replace(long, block_m=max(long.block_m, lines)))
    return Tiles(short, long, few)

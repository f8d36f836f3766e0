# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""The feed-forward blocks of a mixture of experts, each over the tokens that chose it, in two launches.

Owns the kernels, their launches and the order of (token, expert) pairs; knows no router. Invariant: nothing
here waits for the device, launch shapes depend on the sizes of the tensors only, and a token's result depends
on that token alone, but for the order of its sums, which the number of pairs decides.
"""

import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class _Tile:
    """block_m pairs by block_n output features, over block_k input features at a time."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


_WIDE = ((16, _Tile(16, 64, 128, 4, 3)), (48, _Tile(32, 64, 128, 4, 3)), (1 << 31, _Tile(64, 128, 64, 4, 3)))
_FLOAT32 = _Tile(16, 32, 32, 4, 2)


# fmt: off
@triton.jit
def _find_expert(starts, tile, experts, block_m: tl.constexpr):
    """The expert of a tile, the first of its pairs and how many are left. starts [experts + 1]; expert e's
    tiles begin at starts[e] // block_m + e, so some tiles are nobody's.
    """
    expert = tile * 0
    high = tile * 0 + experts
    while high - expert > 1:
        middle = (expert + high) // 2
        if tl.load(starts + middle) // block_m + middle <= tile:
            expert = middle
        else:
            high = middle
    start = tl.load(starts + expert)
    first = start + (tile - (start // block_m + expert)) * block_m
    return expert, first, tl.load(starts + expert + 1) - first


@triton.jit
def _product(
    acc, x, rows, used, weight, columns, in_features, out_features,
    block_k: tl.constexpr, upcast: tl.constexpr,
):
    """acc + x[rows] times weight[columns], weight [N, K]; acc [block_m, block_n]."""
    for start in tl.range(0, in_features, block_k):
        inside = start + tl.arange(0, block_k)
        mask = inside < in_features
        values = tl.load(
            x + rows[:, None] * in_features + inside[None, :], mask=used[:, None] & mask[None, :], other=0.0
        )
        weights = tl.load(
            weight + columns.to(tl.int64)[None, :] * in_features + inside[:, None],
            mask=(columns < out_features)[None, :] & mask[:, None], other=0.0,
        )
        if upcast:
            values, weights = values.to(tl.float32), weights.to(tl.float32)
        acc = tl.dot(values, weights, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["experts", "chosen"])
def _gate_up_kernel(
    out, x, weight, starts, order, experts, chosen, in_features, out_features,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, upcast: tl.constexpr,
):
    """silu(gate) * up of one tile of pairs; out [P, I] in the order of the pairs. Grid (tiles, columns)."""
    expert, first, left = _find_expert(starts, tl.program_id(0), experts, block_m)
    if left <= 0:
        return
    lines = tl.arange(0, block_m)
    used = lines < left
    rows = tl.load(order + first + lines, mask=used, other=0) // chosen
    columns = tl.program_id(1) * block_n + tl.arange(0, block_n)
    gate_rows = weight + expert.to(tl.int64) * 2 * out_features * in_features
    up_rows = gate_rows + out_features.to(tl.int64) * in_features
    zeros = tl.zeros([block_m, block_n], dtype=tl.float32)
    gate = _product(
        zeros, x, rows, used, gate_rows, columns, in_features, out_features, block_k, upcast
    )
    up = _product(zeros, x, rows, used, up_rows, columns, in_features, out_features, block_k, upcast)
    result = gate / (1.0 + tl.exp(-gate)) * up
    into = out + (first + lines).to(tl.int64)[:, None] * out_features + columns[None, :]
    mask = used[:, None] & (columns < out_features)[None, :]
    tl.store(into, result.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["experts", "chosen", "tokens"])
def _down_kernel(
    out, x, weight, starts, order, shares, experts, chosen, tokens, in_features, out_features,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, upcast: tl.constexpr,
):
    """One tile of pairs times down, weighted; out [chosen, tokens, N] float32: pair (t, j) is out[j, t]."""
    expert, first, left = _find_expert(starts, tl.program_id(0), experts, block_m)
    if left <= 0:
        return
    lines = tl.arange(0, block_m)
    used = lines < left
    pairs = tl.load(order + first + lines, mask=used, other=0)
    columns = tl.program_id(1) * block_n + tl.arange(0, block_n)
    acc = tl.zeros([block_m, block_n], dtype=tl.float32)
    matrix = weight + expert.to(tl.int64) * out_features * in_features
    rows = (first + lines).to(tl.int64)
    acc = _product(acc, x, rows, used, matrix, columns, in_features, out_features, block_k, upcast)
    share = tl.load(shares + pairs, mask=used, other=0.0).to(tl.float32)
    places = pairs % chosen * tokens + pairs // chosen
    mask = used[:, None] & (columns < out_features)[None, :]
    tl.store(out + places[:, None] * out_features + columns[None, :], acc * share[:, None], mask=mask)
# fmt: on


def expert_blocks(x: Tensor, ids: Tensor, shares: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Parts [C, T, N] float32 whose sum is the mixture of x [T, N]: part j is of each token's j-th expert.

    ids [T, C] int64: the experts of a token, none twice; shares [T, C]: their weights. gate_up [E, 2 I, N],
    down [E, N, I]; all contiguous, of one dtype. Activation: SiLU.
    """
    (tokens, width), (experts, double, _) = x.shape, gate_up.shape
    chosen, size, pairs = ids.shape[1], double // 2, ids.numel()
    in_order, order = ids.flatten().sort(stable=True)
    starts = torch.searchsorted(in_order, torch.arange(experts + 1, device=x.device)).int()
    tile = _tile_for(x.dtype, pairs / experts)
    tiles = pairs // tile.block_m + experts
    gated = x.new_empty((pairs, size))
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    blocks = (tile.block_m, tile.block_n, tile.block_k, INTERPRETED)
    _gate_up_kernel[(tiles, triton.cdiv(size, tile.block_n))](
        gated, x, gate_up, starts, order, experts, chosen, width, size, *blocks, **options
    )
    out = x.new_empty((chosen, tokens, width), dtype=torch.float32)
    _down_kernel[(tiles, triton.cdiv(width, tile.block_n))](
        *(out, gated, down, starts, order, shares, experts, chosen, tokens, size, width),
        *blocks,
        **options,
    )
    return out


def _tile_for(dtype: torch.dtype, pairs_an_expert: float) -> _Tile:
    """Few pairs are bound by the weights' bytes, many by arithmetic."""
    if dtype == torch.float32:
        return _FLOAT32
    return next(tile for most, tile in _WIDE if pairs_an_expert <= most)

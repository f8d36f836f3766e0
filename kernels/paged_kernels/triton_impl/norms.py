# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""Residual addition with RMSNorm, and the gated activation, each as one kernel.

Owns the kernels and their launches; knows no model. Invariant: arithmetic in float32, one rounding where a
tensor is written.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_kernels.triton_impl import machine

_ACTIVATION_TILE = 1024


@triton.jit
def sum_parts(source, mask, part_stride, parts: tl.constexpr):
    """The float32 sum of a product's parts (see stream_linear), first to last, or the product itself."""
    total = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, parts):
        total += tl.load(source + part_stride.to(tl.int64) * part, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def _add_norm_kernel(
    out, hidden, delta, weight, index, eps, part_stride,
    size: tl.constexpr, block: tl.constexpr, parts: tl.constexpr, chosen: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """parts 0: nothing is added."""
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
    dims = tl.arange(0, block)
    mask = dims < size
    gain = tl.load(weight + dims, mask=mask, other=0.0)
    if overlap:
        tl.extra.cuda.gdc_wait()
    line = tl.program_id(0).to(tl.int64)
    source = line
    if chosen:
        source = tl.load(index + line).to(tl.int64)
    values = tl.load(hidden + source * size + dims, mask=mask, other=0.0)
    if parts > 0:
        more = sum_parts(delta + source * size + dims, mask, part_stride, parts)
        values = (values.to(tl.float32) + more).to(hidden.dtype.element_ty)
        if not chosen:
            tl.store(hidden + source * size + dims, values, mask=mask)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    normed = wide * scale * gain.to(tl.float32)
    tl.store(out + line * size + dims, normed.to(out.dtype.element_ty), mask=mask)


def add_rms_norm(
    hidden: Tensor, delta: Tensor | None, weight: Tensor, eps: float, index: Tensor | None = None
) -> Tensor:
    """RMSNorm (Zhang and Sennrich, arXiv 1910.07467) of hidden + delta, both [T, n] and contiguous.

    delta may also be the parts [S, T, n] of a product, which are summed.
    Without index the sum replaces hidden. With index [S] only those tokens are normed, the result is [S, n],
    and hidden stays as it was.
    """
    size = hidden.shape[1]
    count = hidden.shape[0] if index is None else index.shape[0]
    out = hidden.new_empty((count, size))
    block, overlap = triton.next_power_of_2(size), machine.overlaps(hidden.device)
    parts = count_parts(delta)
    lines_a_warp = 512 if parts < 2 else 128
    _add_norm_kernel[(count,)](
        out,
        hidden,
        hidden if delta is None else delta,
        weight,
        hidden if index is None else index,
        eps,
        hidden.numel(),
        size,
        block,
        parts,
        index is not None,
        overlap,
        num_warps=min(8, max(1, block // lines_a_warp)),
        **machine.launch_options(overlap),
    )
    return out


def count_parts(product: Tensor | None) -> int:
    """Of how many parts a product is the sum: [T, n] is one, [S, T, n] are S, None is nothing."""
    if product is None:
        return 0
    return 1 if product.dim() == 2 else product.shape[0]


@triton.jit
def _silu_mul_kernel(
    out, gate_up, part_stride,
    size: tl.constexpr, tile: tl.constexpr, parts: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    line = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * tile + tl.arange(0, tile)
    mask = dims < size
    gate = sum_parts(gate_up + line * 2 * size + dims, mask, part_stride, parts)
    up = sum_parts(gate_up + line * 2 * size + size + dims, mask, part_stride, parts)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + line * size + dims, result.to(out.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """silu(gate) * up of the packed, contiguous [T, 2 * I] or its parts [S, T, 2 * I]; returns [T, I].

    dtype: of the result, where it is not gate_up's.
    """
    tokens, size = gate_up.shape[-2], gate_up.shape[-1] // 2
    out = torch.empty((tokens, size), dtype=dtype or gate_up.dtype, device=gate_up.device)
    overlap = machine.overlaps(gate_up.device)
    _silu_mul_kernel[(tokens, triton.cdiv(size, _ACTIVATION_TILE))](
        out,
        gate_up,
        2 * size * tokens,
        size,
        _ACTIVATION_TILE,
        count_parts(gate_up),
        overlap,
        **machine.launch_options(overlap),
    )
    return out

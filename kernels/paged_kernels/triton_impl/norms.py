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
def _add_norm_kernel(
    out, hidden, delta, weight, index, eps,
    size: tl.constexpr, block: tl.constexpr, added: tl.constexpr, chosen: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    line = tl.program_id(0).to(tl.int64)
    source = line
    if chosen:
        source = tl.load(index + line).to(tl.int64)
    dims = tl.arange(0, block)
    mask = dims < size
    values = tl.load(hidden + source * size + dims, mask=mask, other=0.0)
    if added:
        more = tl.load(delta + source * size + dims, mask=mask, other=0.0)
        values = (values.to(tl.float32) + more.to(tl.float32)).to(hidden.dtype.element_ty)
        if not chosen:
            tl.store(hidden + source * size + dims, values, mask=mask)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    gain = tl.load(weight + dims, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + line * size + dims, (wide * scale * gain).to(out.dtype.element_ty), mask=mask)


def add_rms_norm(
    hidden: Tensor, delta: Tensor | None, weight: Tensor, eps: float, index: Tensor | None = None
) -> Tensor:
    """RMSNorm (Zhang and Sennrich, arXiv 1910.07467) of hidden + delta, both [T, n] and contiguous.

    Without index the sum replaces hidden. With index [S] only those tokens are normed, the result is [S, n],
    and hidden stays as it was.
    """
    size = hidden.shape[1]
    count = hidden.shape[0] if index is None else index.shape[0]
    out = hidden.new_empty((count, size))
    block, overlap = triton.next_power_of_2(size), machine.overlaps(hidden.device)
    _add_norm_kernel[(count,)](
        out,
        hidden,
        hidden if delta is None else delta,
        weight,
        hidden if index is None else index,
        eps,
        size,
        block,
        delta is not None,
        index is not None,
        overlap,
        num_warps=min(8, max(1, block // 512)),
        **machine.launch_options(overlap),
    )
    return out


@triton.jit
def _silu_mul_kernel(out, gate_up, size: tl.constexpr, tile: tl.constexpr, overlap: tl.constexpr):
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    line = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * tile + tl.arange(0, tile)
    mask = dims < size
    gate = tl.load(gate_up + line * 2 * size + dims, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + line * 2 * size + size + dims, mask=mask, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + line * size + dims, result.to(out.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of the packed, contiguous [T, 2 * I]; returns [T, I]."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    overlap = machine.overlaps(gate_up.device)
    _silu_mul_kernel[(tokens, triton.cdiv(size, _ACTIVATION_TILE))](
        out, gate_up, size, _ACTIVATION_TILE, overlap, **machine.launch_options(overlap)
    )
    return out

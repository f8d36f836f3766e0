# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""Matrix products for some tens of tokens on the matrix units, with norm before, activation or sum after.

Owns the kernel, its launch shape and where it can run; knows no model. Invariant: each output element is
summed in one order; a program's weights are on the way before it waits for the kernel in front of it, and
each warp multiplies its own slice of the input features, so that no chain of products is long.
"""

from functools import lru_cache

import triton
import triton.language as tl
from torch import Tensor

from paged_kernels.triton_impl import machine

MOST_TOKENS = 16
_WARPS = 8
_CHUNK = 1024
_MOST_CHUNKS = 3
_MOST_WEIGHTS = 49152


# fmt: off
@triton.jit
def _load_chunks(rows, block_k: tl.constexpr, chunks: tl.constexpr):
    w0 = tl.load(rows)
    w1, w2 = w0, w0
    if chunks > 1:
        w1 = tl.load(rows + block_k)
    if chunks > 2:
        w2 = tl.load(rows + 2 * block_k)
    return w0, w1, w2


@triton.jit
def _multiply(
    acc, acc_up, squares, x_lines, gains, within, start: tl.constexpr, mask, weights, weights_up,
    normed: tl.constexpr, gated: tl.constexpr,
):
    """Adds one chunk of input features: acc [slices, tokens, columns] and squares [slices, tokens]."""
    values = tl.load(x_lines + start, mask=mask, other=0.0)
    if normed:
        wide = values.to(tl.float32)
        squares += tl.sum(wide * wide, 2)
        values = (wide * tl.load(gains + start + within).to(tl.float32)).to(values.dtype)
    acc = tl.dot(values, tl.permute(weights, (0, 2, 1)), acc, input_precision="ieee")
    if gated:
        acc_up = tl.dot(values, tl.permute(weights_up, (0, 2, 1)), acc_up, input_precision="ieee")
    return acc, acc_up, squares


@triton.jit
def _finish(
    out, acc, acc_up, squares, bias, eps, lines, columns, tokens,
    in_features: tl.constexpr, out_features: tl.constexpr,
    normed: tl.constexpr, gated: tl.constexpr, added: tl.constexpr, biased: tl.constexpr,
):
    """Joins the slices and writes the tile."""
    result = tl.sum(acc, 0)
    if normed:
        scale = tl.rsqrt(tl.sum(squares, 0) / in_features + eps)[:, None]
        result *= scale
    if biased:
        result += tl.load(bias + columns).to(tl.float32)[None, :]
    if gated:
        up = tl.sum(acc_up, 0)
        if normed:
            up *= scale
        if biased:
            up += tl.load(bias + out_features + columns).to(tl.float32)[None, :]
        result = result / (1.0 + tl.exp(-result)) * up
    target = out + lines.to(tl.int64)[:, None] * out_features + columns[None, :]
    mask = (lines < tokens)[:, None]
    if added:
        result += tl.load(target, mask=mask, other=0.0).to(tl.float32)
    tl.store(target, result.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def _linear_kernel(
    out, x, weight, gains, bias, eps, tokens, x_stride,
    in_features: tl.constexpr, out_features: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, slices: tl.constexpr,
    normed: tl.constexpr, gated: tl.constexpr, added: tl.constexpr, biased: tl.constexpr,
    overlap: tl.constexpr,
):
    """block_m tokens, block_n output features. Grid (out_features / block_n, token tiles)."""
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
    depth: tl.constexpr = block_k // slices
    chunks: tl.constexpr = in_features // block_k
    columns = tl.program_id(0) * block_n + tl.arange(0, block_n)
    within = tl.arange(0, slices)[:, None, None] * depth + tl.arange(0, depth)[None, None, :]
    rows = weight + columns.to(tl.int64)[None, :, None] * in_features + within
    w0, w1, w2 = _load_chunks(rows, block_k, chunks)
    u0, u1, u2 = w0, w1, w2
    if gated:
        u0, u1, u2 = _load_chunks(rows + out_features * in_features, block_k, chunks)
    lines = tl.program_id(1) * block_m + tl.arange(0, block_m)
    mask = (lines < tokens)[None, :, None]
    x_lines = x + lines.to(tl.int64)[None, :, None] * x_stride + within
    a = tl.zeros([slices, block_m, block_n], dtype=tl.float32)
    b = tl.zeros([slices, block_m, block_n], dtype=tl.float32)
    s = tl.zeros([slices, block_m], dtype=tl.float32)
    if overlap:
        tl.extra.cuda.gdc_wait()
    a, b, s = _multiply(a, b, s, x_lines, gains, within, 0, mask, w0, u0, normed, gated)
    if chunks > 1:
        a, b, s = _multiply(a, b, s, x_lines, gains, within, block_k, mask, w1, u1, normed, gated)
    if chunks > 2:
        a, b, s = _multiply(a, b, s, x_lines, gains, within, 2 * block_k, mask, w2, u2, normed, gated)
    _finish(
        out, a, b, s, bias, eps, lines, columns, tokens,
        in_features, out_features, normed, gated, added, biased,
    )
# fmt: on


@lru_cache(maxsize=256)
def choose_blocks(in_features: int, out_features: int, gated: bool) -> tuple[int, int] | None:
    """(output features a program, input features a chunk), or None where the kernel cannot run."""
    block_k = min(_CHUNK, in_features & -in_features)
    if in_features // block_k > _MOST_CHUNKS or block_k < 16 * _WARPS:
        return None
    block_n = 32 if in_features * (1 + gated) * 32 <= _MOST_WEIGHTS else 16
    if in_features * (1 + gated) * block_n > _MOST_WEIGHTS or out_features % block_n:
        return None
    return block_n, block_k


def mid_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    gains: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    into: Tensor | None = None,
) -> Tensor:
    """small_linear for more tokens: T <= MOST_TOKENS is where it pays; the same arguments and results."""
    tokens, in_features = x.shape
    out_features = weight.shape[0] // 2 if gated else weight.shape[0]
    out = x.new_empty((tokens, out_features)) if into is None else into
    blocks = choose_blocks(in_features, out_features, gated)
    assert blocks is not None
    block_m = 16 if tokens <= 16 else 32
    overlap = machine.overlaps(x.device)
    _linear_kernel[(out_features // blocks[0], triton.cdiv(tokens, block_m))](
        out,
        x,
        weight,
        x if gains is None else gains,
        x if bias is None else bias,
        eps,
        tokens,
        x.stride(0),
        in_features,
        out_features,
        block_m,
        *blocks,
        _WARPS,
        gains is not None,
        gated,
        into is not None,
        bias is not None,
        overlap,
        num_warps=_WARPS,
        **machine.launch_options(overlap),
    )
    return out

# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""Matrix products for very few tokens, with what surrounds them: norm before, activation or residual after.

Owns the kernel, its launch shape and where it can run; knows no model. Invariant: each output element is
summed by one program in one order, and all of a program's weights are on the way before it waits for the
kernel in front of it.
"""

from functools import lru_cache

import triton
import triton.language as tl
from torch import Tensor

from paged_kernels.triton_impl import machine

MOST_TOKENS = 2
_MOST_CHUNKS = 4
_THREADS = 128
_WEIGHTS_A_THREAD = 64


# fmt: off
@triton.jit
def _load_chunks(rows, block_k: tl.constexpr, chunks: tl.constexpr):
    """Up to four chunks of weight rows; those past the last are the first again, and not used."""
    w0 = tl.load(rows)
    w1, w2, w3 = w0, w0, w0
    if chunks > 1:
        w1 = tl.load(rows + block_k)
    if chunks > 2:
        w2 = tl.load(rows + 2 * block_k)
    if chunks > 3:
        w3 = tl.load(rows + 3 * block_k)
    return w0, w1, w2, w3


@triton.jit
def _add_chunk(
    total, total_up, squares, line, gains, start, weights, weights_up,
    block_k: tl.constexpr, normed: tl.constexpr, gated: tl.constexpr,
):
    """Adds one chunk of input features of one token to the running sums."""
    dims = start + tl.arange(0, block_k)
    values = tl.load(line + dims).to(tl.float32)
    if normed:
        squares += tl.sum(values * values, 0)
        values = values * tl.load(gains + dims).to(tl.float32)
    total += tl.sum(weights.to(tl.float32) * values[None, :], 1)
    if gated:
        total_up += tl.sum(weights_up.to(tl.float32) * values[None, :], 1)
    return total, total_up, squares


@triton.jit
def _linear_kernel(
    out, x, weight, gains, bias, eps, x_stride,
    tokens: tl.constexpr, in_features: tl.constexpr, out_features: tl.constexpr,
    block_n: tl.constexpr, block_k: tl.constexpr, normed: tl.constexpr, gated: tl.constexpr,
    added: tl.constexpr, biased: tl.constexpr, overlap: tl.constexpr,
):
    """block_n output features of every token. Grid (out_features / block_n,)."""
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
    columns = tl.program_id(0) * block_n + tl.arange(0, block_n)
    rows = weight + columns.to(tl.int64)[:, None] * in_features + tl.arange(0, block_k)[None, :]
    chunks: tl.constexpr = in_features // block_k
    w0, w1, w2, w3 = _load_chunks(rows, block_k, chunks)
    u0, u1, u2, u3 = w0, w1, w2, w3
    if gated:
        u0, u1, u2, u3 = _load_chunks(rows + out_features * in_features, block_k, chunks)
    if overlap:
        tl.extra.cuda.gdc_wait()
    for token in tl.static_range(tokens):
        line = x + token * x_stride
        a = tl.zeros([block_n], dtype=tl.float32)
        b = tl.zeros([block_n], dtype=tl.float32)
        s = 0.0
        a, b, s = _add_chunk(a, b, s, line, gains, 0, w0, u0, block_k, normed, gated)
        if chunks > 1:
            a, b, s = _add_chunk(a, b, s, line, gains, block_k, w1, u1, block_k, normed, gated)
        if chunks > 2:
            a, b, s = _add_chunk(a, b, s, line, gains, 2 * block_k, w2, u2, block_k, normed, gated)
        if chunks > 3:
            a, b, s = _add_chunk(a, b, s, line, gains, 3 * block_k, w3, u3, block_k, normed, gated)
        if normed:
            scale = tl.rsqrt(s / in_features + eps)
            a, b = a * scale, b * scale
        if biased:
            a += tl.load(bias + columns).to(tl.float32)
        if gated:
            if biased:
                b += tl.load(bias + out_features + columns).to(tl.float32)
            a = a / (1.0 + tl.exp(-a)) * b
        target = out + token * out_features + columns
        if added:
            a += tl.load(target).to(tl.float32)
        tl.store(target, a.to(out.dtype.element_ty))
# fmt: on


@lru_cache(maxsize=256)
def choose_blocks(in_features: int, out_features: int, gated: bool) -> tuple[int, int] | None:
    """(output features a program, input features a chunk), or None where the kernel cannot run.

    A thread holds at most _WEIGHTS_A_THREAD weights, all loaded at once.
    """
    block_k = min(2048, in_features & -in_features)
    if in_features // block_k > _MOST_CHUNKS:
        return None
    block_n = 16
    while block_n > 1 and block_n * in_features * (1 + gated) > _THREADS * _WEIGHTS_A_THREAD:
        block_n //= 2
    return (block_n, block_k) if out_features % block_n == 0 else None


def small_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    gains: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    into: Tensor | None = None,
) -> Tensor:
    """x [T, K] (rows may be strided) times weight [N, K], for T <= 4 and a weight that choose_blocks takes.

    gains [K]: x is RMS-normed first. gated: the weight's halves are gate and up, the result is silu(gate) *
    up, [T, N / 2]. into: the product is added to this [T, N] in place, which is returned.
    """
    tokens, in_features = x.shape
    out_features = weight.shape[0] // 2 if gated else weight.shape[0]
    out = x.new_empty((tokens, out_features)) if into is None else into
    blocks = choose_blocks(in_features, out_features, gated)
    assert blocks is not None
    overlap = machine.overlaps(x.device)
    _linear_kernel[(out_features // blocks[0],)](
        out,
        x,
        weight,
        x if gains is None else gains,
        x if bias is None else bias,
        eps,
        x.stride(0),
        tokens,
        in_features,
        out_features,
        *blocks,
        gains is not None,
        gated,
        into is not None,
        bias is not None,
        overlap,
        num_warps=_THREADS // 32,
        **machine.launch_options(overlap),
    )
    return out

# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""Matrix products for tens to hundreds of tokens, cut along the input features into partial sums.

Owns the kernel and its launch; knows no model and no choice of shapes. Invariant: a program asks for its
weights before it waits for the kernel in front of it; each partial sum is added up in one order by one
program, and whoever reads the parts (norms, activation, rotation) adds them from the first to the last.
"""

import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from paged_kernels.triton_impl import machine

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_MOST_HELD = 4
_MOST_ASKED = 1024


@dataclass(frozen=True)
class Shape:
    """A program's share: block_n output features, block_k x chunks input features, block_t tokens.

    held: all its weights are fetched before it waits, in at most 4 chunks; else it walks over the chunks in
    `stages`, and before it waits it asks only for their beginning, into the L2 cache.
    """

    block_n: int
    block_k: int
    chunks: int
    block_t: int
    warps: int
    stages: int
    held: bool


# fmt: off
@triton.jit
def _ask_for(rows, size: tl.constexpr):
    """Asks for size bytes at each address, into the L2 cache."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; // $0", "=r,l,r",
        [rows.to(tl.int64), size], dtype=tl.int32, is_pure=False, pack=1,
    )


@triton.jit
def _hold_chunks(weight, row, start, block_k: tl.constexpr, chunks: tl.constexpr):
    """Up to four chunks of weight rows; those past the last are the first again, and not used."""
    w0 = weight.load([row, start])
    w1, w2, w3 = w0, w0, w0
    if chunks > 1:
        w1 = weight.load([row, start + block_k])
    if chunks > 2:
        w2 = weight.load([row, start + 2 * block_k])
    if chunks > 3:
        w3 = weight.load([row, start + 3 * block_k])
    return w0, w1, w2, w3


@triton.jit
def _multiply(acc, x, weights, line, start, upcast: tl.constexpr):
    values = x.load([line, start])
    if upcast:
        values, weights = values.to(tl.float32), weights.to(tl.float32)
    return tl.dot(weights, tl.trans(values), acc, input_precision="ieee")


@triton.jit(do_not_specialize=["tokens"])
def _split_kernel(
    out, x, weight, rows, bias, tokens, in_features, out_features,
    block_n: tl.constexpr, block_k: tl.constexpr, chunks: tl.constexpr, block_t: tl.constexpr,
    held: tl.constexpr, most_asked: tl.constexpr, biased: tl.constexpr, upcast: tl.constexpr,
    overlap: tl.constexpr,
):
    """Grid (feature tiles, parts, token tiles). x [T, K] and weight [N, K] are tensor descriptors: the copy
    engine fetches a tile without registers, and x past its last token is zero. rows: the weight as a pointer.

    Weights are the left operand of the matrix units, so that few tokens make no empty tile.
    """
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
    row, line = tl.program_id(0) * block_n, tl.program_id(2) * block_t
    first = tl.program_id(1) * (block_k * chunks)
    columns = row + tl.arange(0, block_n)
    if biased:  # in the first part
        shift = tl.load(bias + columns, mask=columns * 0 + tl.program_id(1) == 0, other=0.0)
    acc = tl.zeros([block_n, block_t], dtype=tl.float32)
    if held:
        w0, w1, w2, w3 = _hold_chunks(weight, row, first, block_k, chunks)
        if overlap:
            tl.extra.cuda.gdc_wait()
        acc = _multiply(acc, x, w0, line, first, upcast)
        if chunks > 1:
            acc = _multiply(acc, x, w1, line, first + block_k, upcast)
        if chunks > 2:
            acc = _multiply(acc, x, w2, line, first + 2 * block_k, upcast)
        if chunks > 3:
            acc = _multiply(acc, x, w3, line, first + 3 * block_k, upcast)
    else:
        if overlap:
            if tl.program_id(2) == 0:
                starts = rows + columns.to(tl.int64) * in_features + first
                _ask_for(starts, min(block_k * chunks * 2, most_asked))
            tl.extra.cuda.gdc_wait()
        for chunk in tl.range(0, chunks):
            start = first + chunk * block_k
            acc = _multiply(acc, x, weight.load([row, start]), line, start, upcast)
    lines = line + tl.arange(0, block_t)
    if biased:
        acc += shift.to(tl.float32)[:, None]
    part = out + tl.program_id(1).to(tl.int64) * tokens * out_features
    target = part + lines.to(tl.int64)[:, None] * out_features + columns[None, :]
    tl.store(target, tl.trans(acc).to(out.dtype.element_ty), mask=(lines < tokens)[:, None])
# fmt: on


def fits(shape: Shape, in_features: int, out_features: int) -> bool:
    """Whether the shape cuts a weight [out_features, in_features] evenly."""
    few = not shape.held or shape.chunks <= _MOST_HELD
    return few and in_features % (shape.block_k * shape.chunks) == 0 and out_features % shape.block_n == 0


def split_linear(x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
    """x [T, K] times weight [N, K]: parts [S, T, N], S = K / (block_k * chunks), whose sum is the product.

    Float32 parts where S > 1, else the product itself in x's dtype. bias [N] is in the first part. The shape
    must fit. On a device: dtype bfloat16 or float16, compute capability 9.0, and the rows of x (which may be
    strided) and of weight begin at multiples of 16 bytes.
    """
    tokens, in_features = x.shape
    out_features = weight.shape[0]
    parts = in_features // (shape.block_k * shape.chunks)
    out = x.new_empty((parts, tokens, out_features), dtype=torch.float32 if parts > 1 else x.dtype)
    overlap = machine.overlaps(x.device)
    _split_kernel[(out_features // shape.block_n, parts, triton.cdiv(tokens, shape.block_t))](
        out,
        TensorDescriptor(x, [tokens, in_features], [x.stride(0), 1], [shape.block_t, shape.block_k]),
        TensorDescriptor(
            weight, [out_features, in_features], [in_features, 1], [shape.block_n, shape.block_k]
        ),
        weight,
        x if bias is None else bias,
        tokens,
        in_features,
        out_features,
        shape.block_n,
        shape.block_k,
        shape.chunks,
        shape.block_t,
        shape.held,
        _MOST_ASKED,
        bias is not None,
        INTERPRETED,
        overlap,
        num_warps=shape.warps,
        num_stages=shape.stages,
        **machine.launch_options(overlap),
    )
    return out

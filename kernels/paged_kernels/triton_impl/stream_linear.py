# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""Matrix products with large weights for few tokens, at the speed at which the weights can be read.

Owns the kernel and its launch; knows no model and no choice of shapes. Invariant: all programs of a product
have equal work and run at once; a program has asked for as many weights as shared memory holds before it
waits for the kernel in front of it, and only then asks for tokens.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from paged_kernels.triton_impl import machine
from paged_kernels.triton_impl.dependents import launch_dependents, wait_for_dependencies

_barrier = getattr(gl, "thread_barrier", None) or gl.barrier
_fetch = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_SHARED_BYTES = 232448 - 1024


@dataclass(frozen=True)
class Stream:
    """A program's share: `rows` output features, a 1 / parts of the input features, block_t tokens.

    gated: `rows` features of gate and the same of up, and the product is silu(gate) * up; of 32 features
    both share a tile of the matrix units. paired: a program takes half a multiprocessor's shared memory, so
    that two run there.
    """

    rows: int
    parts: int
    block_t: int
    block_k: int
    warps: int
    gated: bool = False
    paired: bool = False

    def stages(self, in_features: int) -> int:
        """As many as shared memory holds and every part has chunks."""
        stage = (self.rows * (1 + self.gated) + self.block_t) * self.block_k * 2
        fewest = in_features // self.block_k // self.parts
        return min(fewest, _SHARED_BYTES // (1 + self.paired) // stage)


# fmt: off
@gluon.jit
def _fetch_chunk(
    weight, gates, ups, bars, stage, row, out_features, start,
    rows: gl.constexpr, bytes_a_stage: gl.constexpr, gated: gl.constexpr, joint: gl.constexpr,
):
    """Asks for one chunk of the weights; its barrier also waits for the tokens' bytes."""
    mbarrier.expect(bars.index(stage), bytes_a_stage)
    if joint:
        _fetch(weight, [row, start], bars.index(stage), gates.index(stage).slice(0, rows))
        _fetch(weight, [row + out_features, start], bars.index(stage), gates.index(stage).slice(rows, rows))
    else:
        _fetch(weight, [row, start], bars.index(stage), gates.index(stage))
        if gated:
            _fetch(weight, [row + out_features, start], bars.index(stage), ups.index(stage))


@gluon.jit
def _multiply(gates, ups, values, stage, acc, up_acc, gated: gl.constexpr):
    """Sets the matrix units to work on one chunk, and waits until they have done with the one before."""
    right = values.index(stage).permute((1, 0))
    acc = warpgroup_mma(gates.index(stage), right, warpgroup_mma_init(acc), is_async=True)
    if gated:
        up_acc = warpgroup_mma(ups.index(stage), right, warpgroup_mma_init(up_acc), is_async=True)
        acc, up_acc = warpgroup_mma_wait(num_outstanding=2, deps=[acc, up_acc])
    else:
        acc = warpgroup_mma_wait(num_outstanding=1, deps=[acc])
    return acc, up_acc


@gluon.jit
def _finish(acc, up_acc, gated: gl.constexpr):
    """The product, or silu(gate) * up."""
    if gated:
        acc, up_acc = warpgroup_mma_wait(num_outstanding=0, deps=[acc, up_acc])
        acc = acc / (1.0 + gl.exp(-acc)) * up_acc
    else:
        acc = warpgroup_mma_wait(num_outstanding=0, deps=[acc])
    return acc


@gluon.jit
def _silu_mul(acc, rows: gl.constexpr):
    """silu(gate) * up [rows, block_t] of a tile that holds gate above up.

    They pass through shared memory, for the matrix units give rows 32 apart to different warps.
    """
    threads: gl.constexpr = rows // 4
    layout: gl.constexpr = gl.BlockedLayout([4, 1], [threads, 32 // threads], [1, gl.num_warps()], [0, 1])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0, 1])
    passed = gl.allocate_shared_memory(gl.float32, [2 * rows, acc.shape[1]], plain)
    passed.store(acc)
    _barrier()
    gate, up = passed.slice(0, rows).load(layout), passed.slice(rows, rows).load(layout)
    return gate / (1.0 + gl.exp(-gate)) * up


@gluon.jit
def _store(
    out, acc, bias, row, line, tokens, out_features,
    rows: gl.constexpr, block_t: gl.constexpr, biased: gl.constexpr,
):
    """acc [rows, block_t] to out [tokens, out_features] at (line, row); the first part takes the bias."""
    if biased:
        features = row + gl.arange(0, rows, layout=gl.SliceLayout(1, acc.type.layout))
        first = features * 0 + gl.program_id(1) == 0
        acc += gl.load(bias + features, mask=first, other=0.0).to(gl.float32)[:, None]
    threads: gl.constexpr = 32 if rows >= 128 else rows // 4
    layout: gl.constexpr = gl.BlockedLayout([4, 1], [threads, 32 // threads], [1, gl.num_warps()], [0, 1])
    values = gl.convert_layout(acc.to(out.dtype.element_ty), layout)
    columns = row + gl.arange(0, rows, layout=gl.SliceLayout(1, layout))
    lines = line + gl.arange(0, block_t, layout=gl.SliceLayout(0, layout))
    target = out + lines.to(gl.int64)[None, :] * out_features + columns[:, None]
    gl.store(target, values, mask=(lines < tokens)[None, :] & (columns >= 0)[:, None])


@gluon.jit(do_not_specialize=["tokens", "chunks"])
def _stream_kernel(
    out, x, weight, bias, tokens, chunks, out_features,
    rows: gl.constexpr, block_t: gl.constexpr, block_k: gl.constexpr, stages: gl.constexpr,
    held: gl.constexpr, gated: gl.constexpr, biased: gl.constexpr, overlap: gl.constexpr,
):
    """Grid (feature tiles, parts, token tiles). x [T, K] and weight [N, K] are tensor descriptors.

    While the matrix units work on a chunk, the one before it makes room for another. held: there is a stage
    for each chunk, and nothing makes room.
    """
    joint: gl.constexpr = gated and rows < 64
    apart: gl.constexpr = gated and not joint
    tile: gl.constexpr = 64 if joint else rows
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, block_t, 16])
    if overlap:
        launch_dependents()
    gates = gl.allocate_shared_memory(x.dtype, [stages, tile, block_k], weight.layout)
    ups = gates
    if apart:
        ups = gl.allocate_shared_memory(x.dtype, [stages, rows, block_k], weight.layout)
    values = gl.allocate_shared_memory(x.dtype, [stages, block_t, block_k], x.layout)
    bars = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(stages):
        mbarrier.init(bars.index(stage), count=1)

    size: gl.constexpr = ((rows * 2 if gated else rows) + block_t) * block_k * 2
    row, line = gl.program_id(0) * rows, gl.program_id(2) * block_t
    first = gl.program_id(1) * chunks // gl.num_programs(1)
    count = (gl.program_id(1) + 1) * chunks // gl.num_programs(1) - first
    for stage in gl.static_range(stages):
        start = (first + stage) * block_k
        _fetch_chunk(weight, gates, ups, bars, stage, row, out_features, start, rows, size, gated, joint)
    if overlap:
        wait_for_dependencies()
    for stage in gl.static_range(stages):
        _fetch(x, [line, (first + stage) * block_k], bars.index(stage), values.index(stage))

    acc = gl.zeros([tile, block_t], gl.float32, layout)
    up_acc = acc
    if held:
        for chunk in gl.static_range(stages):
            mbarrier.wait(bars.index(chunk), 0)
            acc, up_acc = _multiply(gates, ups, values, chunk, acc, up_acc, apart)
    else:
        for chunk in range(count):
            current = chunk % stages
            mbarrier.wait(bars.index(current), chunk // stages & 1)
            acc, up_acc = _multiply(gates, ups, values, current, acc, up_acc, apart)
            _barrier()  # all warps have done with the chunk before
            later = chunk - 1 + stages
            if (chunk > 0) & (later < count):
                freed, at = later % stages, (first + later) * block_k
                _fetch_chunk(weight, gates, ups, bars, freed, row, out_features, at, rows, size, gated, joint)
                _fetch(x, [line, at], bars.index(freed), values.index(freed))
    acc = _finish(acc, up_acc, apart)
    _barrier()  # all warps have done with shared memory, which the results pass through
    if joint:
        acc = _silu_mul(acc, rows)
    part = out + gl.program_id(1).to(gl.int64) * tokens * out_features
    _store(part, acc, bias, row, line, tokens, out_features, rows, block_t, biased)
# fmt: on


def fits(shape: Stream, in_features: int, out_features: int) -> bool:
    """Whether the shape cuts a weight [out_features, in_features]; its parts may differ by one chunk."""
    chunks, rest = divmod(in_features, shape.block_k)
    return rest == 0 and chunks >= shape.parts and out_features % (shape.rows * (1 + shape.gated)) == 0


def _descriptor(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    element = gl.bfloat16 if matrix.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], element)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)


def stream_linear(x: Tensor, weight: Tensor, bias: Tensor | None, shape: Stream) -> Tensor:
    """x [T, K] times weight [N, K]: parts [S, T, N], S = shape.parts, whose sum is the product.

    Float32 parts where S > 1, else the product itself in x's dtype; gated: silu(gate) * up [1, T, N / 2].
    bias [N] is in the first part; a gated product takes none. The shape must fit. Dtype bfloat16 or float16,
    compute capability 9.0, and the rows of x (which may be strided) and of weight begin at multiples of 16
    bytes.
    """
    assert bias is None or not shape.gated
    tokens, in_features = x.shape
    out_features = weight.shape[0] // 2 if shape.gated else weight.shape[0]
    out = x.new_empty(
        (shape.parts, tokens, out_features), dtype=torch.float32 if shape.parts > 1 else x.dtype
    )
    stages, overlap = shape.stages(in_features), machine.overlaps(x.device)
    _stream_kernel[(out_features // shape.rows, shape.parts, triton.cdiv(tokens, shape.block_t))](
        out,
        _descriptor(x, shape.block_t, shape.block_k),
        _descriptor(weight, shape.rows, shape.block_k),
        x if bias is None else bias,
        tokens,
        in_features // shape.block_k,
        out_features,
        shape.rows,
        shape.block_t,
        shape.block_k,
        stages,
        in_features == stages * shape.block_k * shape.parts,
        shape.gated,
        bias is not None,
        overlap,
        num_warps=shape.warps,
        **machine.launch_options(overlap),
    )
    return out

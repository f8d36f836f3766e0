"""Weights packed for the compiled kernels: float32, bfloat16, int8 or 4-bit, and products with them.

Owns the memory of a packed weight; knows no model. Invariant: a product's row does not depend on how many
rows go with it, in any format.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_kernels import contracts
from paged_kernels.cpu_impl import library

FORMATS = {
    "float32": library.FLOAT32,
    "bfloat16": library.BFLOAT16,
    "int8": library.INT8,
    "int4": library.INT4,
}
"""Groups of 32 inputs have a scale in int8 (as GGUF Q8_0), a scale and a least value in int4 (as Q4_1)."""
_GRIDS = {"int4": library.GRID4, "int8": library.GRID8}
"""bfloat16 weights may be kept as such groups' numbers where that is exact."""
_BFLOAT16 = (library.BFLOAT16, *_GRIDS.values())


@dataclass(frozen=True)
class PackedWeight:
    """A weight [outputs, inputs] in the layout of packed.hpp. bias [outputs] float32, or None.

    handle: the C structure, to be passed by value; its addresses are those of the tensors here.
    """

    handle: library.Weight
    data: Tensor
    wide: Tensor | None
    scales: Tensor | None
    least: Tensor | None
    bias: Tensor | None

    @property
    def outputs(self) -> int:
        return int(self.handle.columns)

    @property
    def inputs(self) -> int:
        return int(self.handle.k)

    @property
    def activation_dtype(self) -> torch.dtype:
        """What `linear` takes: bfloat16 for bfloat16 weights, else float32."""
        return torch.bfloat16 if self.handle.format in _BFLOAT16 else torch.float32

    @property
    def num_bytes(self) -> int:
        return sum(
            t.nbytes for t in (self.data, self.wide, self.scales, self.least, self.bias) if t is not None
        )


def pack(weight: Tensor, format_name: str, bias: Tensor | None = None, gated: bool = False) -> PackedWeight:
    """Packs a weight [outputs, inputs] of any float dtype; a copy, the original may be dropped.

    format_name: a key of FORMATS. gated: the rows are two equal halves whose products meet element by element
    (gate and up). Raises contracts.ShapeError or contracts.ArgumentError.
    """
    if format_name not in FORMATS:
        raise contracts.ArgumentError(f"format: {format_name!r}, expected one of {', '.join(FORMATS)}")
    packed = _pack(weight, FORMATS[format_name], bias, gated)
    assert packed is not None
    return packed


def pack_exactly(weight: Tensor, bias: Tensor | None = None, gated: bool = False) -> PackedWeight:
    """A float32 weight as bfloat16, and for few rows in 4 or 8 bits where these give back every bfloat16.

    So it is for weights dequantised from GGUF's Q4_1 and Q8_0. Few rows then read a third of the bytes, and
    products are those of plain bfloat16 in every bit. Raises contracts.ShapeError.
    """
    for form in _GRIDS.values():
        packed = _pack(weight, form, bias, gated)
        if packed is not None:
            return packed
    return pack(weight, "bfloat16", bias, gated)


def _pack(weight: Tensor, form: int, bias: Tensor | None, gated: bool) -> PackedWeight | None:
    """None: the weight does not lie on the grid."""
    if weight.dim() != 2 or not weight.numel():
        raise contracts.ShapeError(f"weight: shape {list(weight.shape)}, expected [outputs, inputs]")
    if gated and weight.shape[0] % 2:
        raise contracts.ShapeError(f"weight: {weight.shape[0]} rows, expected two equal halves")
    call = library.load().call
    handle = library.Weight(format=form, columns=weight.shape[0], k=weight.shape[1], gated=int(gated))
    data = torch.empty(call["packed_words"](ctypes.byref(handle)), dtype=torch.int32)
    handle.data = data.data_ptr()
    wide = scales = least = None
    if call["wide_words"](ctypes.byref(handle)):
        wide = torch.empty(call["wide_words"](ctypes.byref(handle)), dtype=torch.int32)
        handle.wide = wide.data_ptr()
    count = call["packed_scales"](ctypes.byref(handle))
    if count:
        scales = torch.empty(count, dtype=torch.float16)
        handle.scales = scales.data_ptr()
    if form in (library.INT4, library.GRID4):
        least = torch.empty(count, dtype=torch.float16)
        handle.least = least.data_ptr()
    plain = weight.detach().to(torch.float32).contiguous()
    if not call["pack"](ctypes.byref(handle), plain.data_ptr()):
        return None
    if bias is not None:
        bias = bias.detach().to(torch.float32).contiguous()
        handle.bias = bias.data_ptr()
    return PackedWeight(handle, data, wide, scales, least, bias)


def padded(inputs: int) -> int:
    """The row length of activations that the kernels read: whole groups, zeros beyond `inputs`."""
    return -(-inputs // library.GROUP) * library.GROUP


def linear(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [rows, inputs] times the weight, plus its bias: [rows, outputs] float32.

    x is cast to weight.activation_dtype. Raises contracts.ShapeError. A gated weight has its own kernel.
    """
    if x.dim() != 2 or x.shape[1] != weight.inputs or weight.handle.gated:
        raise contracts.ShapeError(f"x: shape {list(x.shape)}, expected [rows, {weight.inputs}], not gated")
    rows, width = x.shape[0], padded(weight.inputs)
    source = torch.zeros((rows, width), dtype=weight.activation_dtype)
    source[:, : weight.inputs] = x
    out = torch.empty((rows, weight.outputs), dtype=torch.float32)
    library.load().call["linear"](ctypes.byref(weight.handle), source.data_ptr(), width, rows, out.data_ptr())
    return out

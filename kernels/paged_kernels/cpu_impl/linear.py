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


@dataclass(frozen=True)
class PackedWeight:
    """A weight [outputs, inputs] in the layout of linear.hpp. bias [outputs] float32, or None.

    handle: the C structure, to be passed by value; its addresses are those of the tensors here.
    """

    handle: library.Weight
    data: Tensor
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
        return torch.bfloat16 if self.handle.format == library.BFLOAT16 else torch.float32

    @property
    def num_bytes(self) -> int:
        return sum(t.nbytes for t in (self.data, self.scales, self.least, self.bias) if t is not None)


def pack(weight: Tensor, format_name: str, bias: Tensor | None = None, gated: bool = False) -> PackedWeight:
    """Packs a weight [outputs, inputs] of any float dtype; a copy, the original may be dropped.

    format_name: a key of FORMATS. gated: the rows are two equal halves whose products meet element by element
    (gate and up). Raises contracts.ShapeError or contracts.ArgumentError.
    """
    if weight.dim() != 2 or not weight.numel():
        raise contracts.ShapeError(f"weight: shape {list(weight.shape)}, expected [outputs, inputs]")
    if format_name not in FORMATS:
        raise contracts.ArgumentError(f"format: {format_name!r}, expected one of {', '.join(FORMATS)}")
    if gated and weight.shape[0] % 2:
        raise contracts.ShapeError(f"weight: {weight.shape[0]} rows, expected two equal halves")
    call = library.load().call
    handle = library.Weight(
        format=FORMATS[format_name], columns=weight.shape[0], k=weight.shape[1], gated=int(gated)
    )
    data = torch.empty(call["packed_words"](ctypes.byref(handle)), dtype=torch.int32)
    handle.data = data.data_ptr()
    scales = least = None
    count = call["packed_scales"](ctypes.byref(handle))
    if count:
        scales = torch.empty(count, dtype=torch.float16)
        handle.scales = scales.data_ptr()
    if format_name == "int4":
        least = torch.empty(count, dtype=torch.float16)
        handle.least = least.data_ptr()
    plain = weight.detach().to(torch.float32).contiguous()
    call["pack"](ctypes.byref(handle), plain.data_ptr())
    if bias is not None:
        bias = bias.detach().to(torch.float32).contiguous()
        handle.bias = bias.data_ptr()
    return PackedWeight(handle, data, scales, least, bias)


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

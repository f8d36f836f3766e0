"""Whole decoder layers on a CPU: packed weights and one call into C++ for all layers of a step.

Owns the layers' descriptors and the step's buffers; knows no checkpoint, no tokens and no rows. Invariant: a
token's result depends on the token, its position and its context, in no bit on what else is in the step.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_kernels import contracts
from paged_kernels.cpu_impl import library
from paged_kernels.cpu_impl.linear import PackedWeight, padded

PARTS = ("norms", "qkv", "rotate, store", "attention", "out", "gate, up", "down")
_WRONG = {1: "slot_mapping: a slot", 2: "block_tables: a block", 3: "positions: a position"}


@dataclass(frozen=True)
class LayerWeights:
    """One layer: RMSNorm weights [hidden] float32, qk_norm [Hq + Hkv, D] float32 or None, packed products.

    input_norm, post_norm: before attention and before the gated products; attention_out_norm, mlp_out_norm:
    of what they add to the stream. cos_sin [positions, 2, R / 2] float32: the rotary table, halves paired;
    the first R dimensions of a head turn. qkv: rows of q, k, v; gate_up: packed with gated. window: tokens
    that a query sees, 0: all.
    """

    qkv: PackedWeight
    out: PackedWeight
    gate_up: PackedWeight
    down: PackedWeight
    cos_sin: Tensor
    input_norm: Tensor | None = None
    post_norm: Tensor | None = None
    attention_out_norm: Tensor | None = None
    mlp_out_norm: Tensor | None = None
    qk_norm: Tensor | None = None
    window: int = 0

    @property
    def norms(self) -> list[Tensor]:
        every = (self.input_norm, self.post_norm, self.attention_out_norm, self.mlp_out_norm, self.qk_norm)
        return [norm for norm in every if norm is not None]


@dataclass(frozen=True)
class StackShape:
    """What all layers share. softcap: of attention's scores, 0: none. wide_qk_norm: one norm over all heads
    of q, and one over those of k. gelu: its tanh form gates, else SiLU.
    """

    query_heads: int
    head_dim: int
    norm_eps: float
    softcap: float = 0.0
    wide_qk_norm: bool = False
    gelu: bool = False


@dataclass(frozen=True)
class Rows:
    """The rows of a step, as paged_attention takes them, and slot_mapping [T] int32."""

    slot_mapping: Tensor
    block_tables: Tensor
    cu_query_lens: Tensor
    context_lens: Tensor
    scale: float


class LayerStack:
    """All layers of one model over one KV pool [2, L, B, bs, Hkv, D], float32 or bfloat16.

    Raises contracts.ArgumentError.
    """

    def __init__(self, layers: list[LayerWeights], shape: StackShape) -> None:
        self._weights = layers
        self._query_heads, self._head_dim = shape.query_heads, shape.head_dim
        table = layers[0].cos_sin
        self._layers = (library.Layer * len(layers))(*(_descriptor(layer) for layer in layers))
        self._hidden_size = layers[0].qkv.inputs
        self._activations = layers[0].qkv.activation_dtype
        self._pool: Tensor | None = None
        self._capacity = 0
        self._buffers: dict[str, Tensor] = {}
        self._step = library.Step(
            num_positions=table.shape[0],
            hidden_size=self._hidden_size,
            activations_are_bf16=self._activations == torch.bfloat16,
            rotary_dim=2 * table.shape[2],
            qk_norm_is_wide=shape.wide_qk_norm,
            gelu=shape.gelu,
            norm_eps=shape.norm_eps,
        )
        self._step.attention.softcap = shape.softcap

    def watch(self) -> dict[str, Tensor]:
        """Nanoseconds [1] int64 by PARTS, to which every step from now on adds what its layers took."""
        self._spent = torch.zeros(len(PARTS), dtype=torch.int64)
        self._step.spent = self._spent.data_ptr()
        return {part: self._spent[number : number + 1] for number, part in enumerate(PARTS)}

    @property
    def num_bytes(self) -> int:
        """Bytes of all packed weights, norms and the rotary tables."""
        total = sum({w.cos_sin.data_ptr(): w.cos_sin.nbytes for w in self._weights}.values())
        for w in self._weights:
            total += sum(t.nbytes for t in w.norms)
            total += sum(p.num_bytes for p in (w.qkv, w.out, w.gate_up, w.down))
        return total

    def run(self, hidden: Tensor, positions: Tensor, rows: Rows, kv_pool: Tensor) -> None:
        """Adds every layer's result to hidden [T, hidden] float32 in place; positions [T] int64.

        Stores the new keys and values, then attends, layer by layer. Raises IndexError for a slot, block or
        position out of range.
        """
        tokens = hidden.shape[0]
        if hidden.dtype != torch.float32 or not hidden.is_contiguous() or positions.dtype != torch.int64:
            raise contracts.DtypeError(f"hidden: {hidden.dtype}, expected float32; positions int64")
        self._bind(kv_pool)
        self._reserve(tokens)
        step, attention = self._step, self._step.attention
        step.hidden, step.positions = hidden.data_ptr(), positions.data_ptr()
        step.slots, step.tokens = rows.slot_mapping.data_ptr(), tokens
        attention.tables, attention.table_row = rows.block_tables.data_ptr(), rows.block_tables.stride(0)
        attention.starts, attention.contexts = rows.cu_query_lens.data_ptr(), rows.context_lens.data_ptr()
        attention.rows, attention.scale = rows.context_lens.shape[0], rows.scale
        wrong = library.load().call["run_layers"](ctypes.byref(step), self._layers, len(self._layers))
        if wrong:
            raise IndexError(f"{_WRONG[wrong]} is out of range")

    def _bind(self, kv_pool: Tensor) -> None:
        """Points the layers at a pool; free when it is the one of the last step."""
        if kv_pool is self._pool:
            return
        contracts.check_zero_blocks(kv_pool, torch.zeros(0, dtype=torch.int64))
        if kv_pool.dtype not in (torch.float32, torch.bfloat16) or kv_pool.shape[1] != len(self._layers):
            raise contracts.ShapeError(
                f"kv_pool: {kv_pool.dtype} {list(kv_pool.shape)} does not fit the layers"
            )
        for index, layer in enumerate(self._layers):
            layer.k_pool, layer.v_pool = kv_pool[0, index].data_ptr(), kv_pool[1, index].data_ptr()
        attention = self._step.attention
        attention.num_blocks, attention.block_size, attention.kv_heads = kv_pool.shape[2:5]
        attention.pool_block, attention.pool_slot, attention.pool_head = kv_pool.stride()[2:5]
        attention.query_heads, attention.head_dim = self._query_heads, self._head_dim
        self._step.pool_is_bf16 = kv_pool.dtype == torch.bfloat16
        self._pool, self._capacity = kv_pool, 0

    def _reserve(self, tokens: int) -> None:
        """Buffers for this many tokens; they grow and stay. Padding columns are zero and never written."""
        if tokens <= self._capacity:
            return
        assert self._pool is not None
        first, q_size = self._weights[0], self._query_heads * self._head_dim
        widths = {
            "normed": padded(self._hidden_size),
            "attended": padded(q_size),
            "gated": padded(first.down.inputs),
        }
        step = self._step
        for name, width in widths.items():
            self._buffers[name] = torch.zeros((tokens, width), dtype=self._activations)
            setattr(step, f"{name}_ld", width)
        self._buffers["qkv"] = torch.empty((tokens, first.qkv.outputs), dtype=torch.float32)
        if first.attention_out_norm is not None or first.mlp_out_norm is not None:
            self._buffers["product"] = torch.empty((tokens, self._hidden_size), dtype=torch.float32)
        self._buffers["query"] = torch.empty((tokens, q_size), dtype=self._pool.dtype)
        for name, buffer in self._buffers.items():
            setattr(step, name, buffer.data_ptr())
        self._capacity = tokens


def _descriptor(layer: LayerWeights) -> library.Layer:
    for plain in (*layer.norms, layer.cos_sin):
        if plain.dtype != torch.float32 or not plain.is_contiguous():
            raise contracts.DtypeError(f"norm or cos_sin: dtype {plain.dtype}, expected contiguous float32")
    names = ("input_norm", "post_norm", "attention_out_norm", "mlp_out_norm", "qk_norm")
    norms = {name: None if (norm := getattr(layer, name)) is None else norm.data_ptr() for name in names}
    return library.Layer(
        **norms,
        cos_sin=layer.cos_sin.data_ptr(),
        window=layer.window,
        qkv=layer.qkv.handle,
        out=layer.out.handle,
        gate_up=layer.gate_up.handle,
        down=layer.down.handle,
    )


class Head:
    """The final norm and the product with the head: logits [S, vocab] float32 of hidden states."""

    def __init__(self, norm: Tensor, weight: PackedWeight, norm_eps: float) -> None:
        self._norm, self._weight, self._eps = norm.to(torch.float32).contiguous(), weight, norm_eps
        self._logits = torch.empty(0, weight.outputs)

    @property
    def num_bytes(self) -> int:
        return self._norm.nbytes + self._weight.num_bytes

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden [S, hidden] float32; the result is overwritten by the next call."""
        rows, width = hidden.shape[0], padded(self._weight.inputs)
        if self._logits.shape[0] < rows:
            self._logits = torch.empty((rows, self._weight.outputs), dtype=torch.float32)
        normed = torch.zeros((rows, width), dtype=self._weight.activation_dtype)
        hidden = hidden.contiguous()
        library.load().call["logits"](
            ctypes.byref(self._weight.handle),
            self._norm.data_ptr(),
            self._eps,
            hidden.data_ptr(),
            rows,
            normed.data_ptr(),
            width,
            self._logits.data_ptr(),
        )
        return self._logits[:rows]

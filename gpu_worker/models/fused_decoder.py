"""The decoder's forward pass on fused kernels: few, fat launches, and nothing that waits for the device.

Owns the order of the kernels of one step; knows neither rows nor plans. Invariant: launch shapes depend on
the sizes of the given tensors and on the two bounds only, so that a pass can be captured in a CUDA graph.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.kv_pool import KvPool
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.experts import Experts, route
from gpu_worker.models.layer_weights import Layer
from gpu_worker.models.registry import ModelConfig
from paged_kernels.dispatch import FusedKernels, Kernels


def obstacle(config: ModelConfig) -> str:
    """What the fused kernels lack for this decoder, or nothing."""
    missing = {
        "norms after a block": config.norms != "before",
        "norms added to 1": config.norm_offset,
        "norms of all of q and k": config.qk_norm == "width",
        f"the activation {config.activation}": config.activation != "silu",
        "partial rotation": config.rope.rotary_dim != config.head_dim,
        "a soft cap": bool(config.attention_softcap or config.logits_softcap),
        "a scaled embedding": config.embedding_scale != 1,
    }
    return ", ".join(name for name, lacks in missing.items() if lacks)


@dataclass(frozen=True, slots=True)
class ModelStep:
    """R rows, T tokens, S samples. Tokens behind the last row's are padding: slot -1, their results mean
    nothing.

    positions, slot_mapping [T]; block_tables [R, W], cu_query_lens [R + 1], context_lens [R]: int32;
    sample_positions [S]. max_query_len and max_context_len bound the rows.
    """

    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    cu_query_lens: Tensor
    context_lens: Tensor
    sample_positions: Tensor
    max_query_len: int
    max_context_len: int
    work: Any = None
    """What layers that see whole contexts share in attention; see `Kernels.decode_work`."""


_ALIGNED = 16
"""Bytes: what kernels are compiled for."""


def _weights_of(layer: Layer) -> list[tuple[int, int, bool]]:
    """Input and output features of its products, and which of them is the packed gate and up."""
    gate_up, down = layer.mlp
    plain = [(weight.shape[1], weight.shape[0], False) for weight in (layer.qkv, layer.out, down)]
    return [*plain, (gate_up.shape[1], gate_up.shape[0] // 2, True)]


class FusedDecoder:
    """A decoder's weights with the kernels that run them over one pool; its config has no `obstacle`."""

    def __init__(self, decoder: Decoder, pool: KvPool, kernels: Kernels, fused: FusedKernels) -> None:
        self.decoder = decoder
        self.block_size = pool.block_size
        self.fused = fused
        self._pool = pool
        self._kernels = kernels
        self._eps = decoder.config.norm_eps
        self._scale = decoder.config.attention_scale
        self._weights = _weights_of(decoder.layers[0]) if decoder.config.experts is None else None
        self._layers = list(range(len(decoder.layers)))

    def shortened(self) -> Self:
        """The same with as few layers as launch every kernel that all of them do.

        These are one of each kind to attention, and two that follow one another for each two kinds of block,
        for the second adds up what the first one's block gave.
        """
        short = copy.copy(self)
        has_experts = tuple(layer.experts is not None for layer in self.decoder.layers)
        kinds = {self._kind(index): index for index in reversed(self._layers)}
        pairs = {has_experts[index - 1 : index + 1]: index for index in reversed(self._layers[1:])}
        short._layers = sorted({*kinds.values(), *pairs.values(), *(index - 1 for index in pairs.values())})
        return short

    def _kind(self, index: int) -> tuple[bool, bool, bool, int, int]:
        """Whether a layer is first, has a window, and experts, and how its part of the pool is aligned."""
        keys, values = self._pool.keys(index).data_ptr(), self._pool.values(index).data_ptr()
        has_experts = self.decoder.layers[index].experts is not None
        is_first, has_window = index == self._layers[0], self.decoder.config.windows[index] > 0
        return is_first, has_window, has_experts, keys % _ALIGNED, values % _ALIGNED

    @property
    def vocab_size(self) -> int:
        return self.decoder.config.vocab_size

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    def enter(self, inputs: Mapping[str, Tensor], last_tokens: Tensor, tables: Tensor) -> Tensor:
        """Embeddings [T, hidden]; see step_model.StepModel."""
        return self.fused.embed_tokens(
            self.decoder.embedding,
            inputs["input_ids"],
            inputs["owners"],
            last_tokens,
            tables,
            inputs["table_rows"],
            inputs["table_offsets"],
            inputs["table_blocks"],
        )

    def logits(self, hidden: Tensor, step: ModelStep) -> Tensor:
        """Logits [S, vocab] of embedded tokens [T, hidden], which are overwritten; K and V are stored."""
        return self.head(self.hidden(hidden, step))

    def head(self, normed: Tensor) -> Tensor:
        """Logits [n, vocab] of normed hidden states [n, hidden]."""
        return F.linear(normed, self.decoder.head)

    def hidden(self, hidden: Tensor, step: ModelStep) -> Tensor:
        """Normed hidden states [S, hidden], what `head` takes, of embedded tokens as in `logits`."""
        step, linear = self._listed(step), None
        if self._weights is not None:
            linear = self.fused.linear_for(hidden.shape[0], self._weights, hidden.dtype)
        delta: Tensor | None = None
        for index in self._layers:
            layer = self.decoder.layers[index]
            if linear is not None:
                self._fused_layer(linear, index, layer, hidden, step)
            else:
                delta = self._layer(index, layer, hidden, delta, step)
        return self.fused.add_rms_norm(hidden, delta, self.decoder.norm, self._eps, step.sample_positions)

    def _listed(self, step: ModelStep) -> ModelStep:
        """The step with the work list of its decodes, where the kernels have one; the first layer's
        rotate_store settles it.
        """
        list_work, config = self._kernels.decode_work, self.decoder.config
        if list_work is None or step.max_query_len != 1 or all(config.windows):
            return step
        lens = step.block_tables, step.cu_query_lens, step.context_lens
        return replace(step, work=list_work(*lens, self._pool.keys(0), config.num_heads, self.decoder.dtype))

    def _layer(
        self, index: int, layer: Layer, hidden: Tensor, delta: Tensor | None, step: ModelStep
    ) -> Tensor:
        """One layer but its last addition: returns what the next one adds to hidden."""
        fused = self.fused
        normed = fused.add_rms_norm(hidden, delta, layer.input_norm, self._eps)
        attended = self._attend(index, layer, fused.linear(normed, layer.qkv, layer.qkv_bias), step)
        delta = fused.linear(attended, layer.out, layer.out_bias)
        normed = fused.add_rms_norm(hidden, delta, layer.post_norm, self._eps)
        if layer.experts is not None:
            return self._mixture(layer.experts, normed)
        gate_up, down = layer.mlp
        return fused.linear(fused.gated_linear(normed, gate_up, layer.gate_up_bias), down, layer.down_bias)

    def _mixture(self, experts: Experts, normed: Tensor) -> Tensor:
        """Parts [C, T, hidden] of the tokens' experts, as add_rms_norm sums them."""
        how = self.decoder.config.experts
        assert how is not None
        shares, ids = route(normed, experts.router, how.chosen, how.normalize)
        return self.fused.expert_blocks(normed, ids, shares, experts.gate_up, experts.down)

    def _fused_layer(
        self, linear: Callable[..., Tensor], index: int, layer: Layer, hidden: Tensor, step: ModelStep
    ) -> None:
        """One layer for few tokens, in place: norms, activation and additions are part of the products."""
        eps = self._eps
        qkv = linear(hidden, layer.qkv, layer.qkv_bias, layer.input_norm, eps)
        linear(self._attend(index, layer, qkv, step), layer.out, layer.out_bias, into=hidden)
        gated = linear(hidden, layer.gate_up, layer.gate_up_bias, layer.post_norm, eps, gated=True)
        linear(gated, layer.down, layer.down_bias, into=hidden)

    def _attend(self, index: int, layer: Layer, qkv: Tensor, step: ModelStep) -> Tensor:
        """Packed qkv [T, (Hq + 2 Hkv) * D], or its parts, -> attention's output [T, Hq * D]."""
        keys, values = self._pool.keys(index), self._pool.values(index)
        query = self.fused.rotate_store(
            qkv,
            layer.qk_norm,
            self._eps,
            self.decoder.rope_table,
            step.positions,
            keys,
            values,
            step.slot_mapping,
            settles=index == self._layers[0],
        )
        window = self.decoder.config.windows[index]
        shared = {} if step.work is None or window else {"work": step.work}
        attended = self._kernels.paged_attention(
            query,
            keys,
            values,
            step.block_tables,
            step.cu_query_lens,
            step.context_lens,
            self._scale,
            step.max_query_len,
            step.max_context_len,
            window=window,
            **shared,
        )
        return attended.view(query.shape[0], self.decoder.config.q_size)

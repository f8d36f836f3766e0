"""The one decoder: Llama and Qwen3 families by configuration, with packed qkv and gate-up matrices.

Owns the weights and the forward pass over a flat batch of tokens; knows neither rows nor the pool, which hide
behind `Attend`. Invariant: every weight of a checkpoint has exactly one destination, listed by
`destinations`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.models import layers
from gpu_worker.models.registry import ModelConfig
from gpu_worker.models.rope import cos_sin_table

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq, D]: stores k and v, then attends."""


@dataclass(slots=True)
class Layer:
    """One layer's weights. q, k and v are rows of `qkv`; gate and up are rows of `gate_up`."""

    input_norm: Tensor
    qkv: Tensor
    out: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None = None
    out_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    qk_norm: Tensor | None = None


class Decoder:
    """A decoder with empty weights; `loader.load` fills them.

    max_positions: rows of the rotary table, the longest context in tokens.
    """

    def __init__(
        self, config: ModelConfig, device: torch.device, dtype: torch.dtype, max_positions: int
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self.embedding = self._empty(config.vocab_size, config.hidden_size)
        self.head = self.embedding
        if not config.tie_embeddings:
            self.head = self._empty(config.vocab_size, config.hidden_size)
        self.norm = self._empty(config.hidden_size)
        self.layers = [self._layer() for _ in range(config.num_layers)]
        self.rope_table = cos_sin_table(config.rope, max_positions, device, dtype)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _layer(self) -> Layer:
        c = self.config
        qkv_size = c.q_size + 2 * c.kv_size
        layer = Layer(
            input_norm=self._empty(c.hidden_size),
            qkv=self._empty(qkv_size, c.hidden_size),
            out=self._empty(c.hidden_size, c.q_size),
            post_norm=self._empty(c.hidden_size),
            gate_up=self._empty(2 * c.intermediate_size, c.hidden_size),
            down=self._empty(c.hidden_size, c.intermediate_size),
        )
        if c.qkv_bias:
            layer.qkv_bias = self._empty(qkv_size)
        if c.out_bias:
            layer.out_bias = self._empty(c.hidden_size)
        if c.mlp_bias:
            layer.gate_up_bias = self._empty(2 * c.intermediate_size)
            layer.down_bias = self._empty(c.hidden_size)
        if c.qk_norm:
            layer.qk_norm = self._empty(c.num_heads + c.num_kv_heads, c.head_dim)
        return layer

    def destinations(self) -> dict[str, Tensor]:
        """Each checkpoint name (Hugging Face) and the view its values are copied into; shapes are the file's.

        A q_norm or k_norm weight [D] is copied to all its heads: its view is [H, D] and broadcasts.
        """
        views = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        if not self.config.tie_embeddings:
            views["lm_head.weight"] = self.head
        for index, layer in enumerate(self.layers):
            for name, view in self._layer_views(layer).items():
                views[f"model.layers.{index}.{name}"] = view
        return views

    def _layer_views(self, layer: Layer) -> dict[str, Tensor]:
        c = self.config
        views = {
            "input_layernorm.weight": layer.input_norm,
            "post_attention_layernorm.weight": layer.post_norm,
            "self_attn.o_proj.weight": layer.out,
            "mlp.down_proj.weight": layer.down,
        }
        for suffix, qkv, gate_up in (
            ("weight", layer.qkv, layer.gate_up),
            ("bias", layer.qkv_bias, layer.gate_up_bias),
        ):
            if qkv is not None:
                parts = torch.split(qkv, [c.q_size, c.kv_size, c.kv_size])
                views |= {f"self_attn.{x}_proj.{suffix}": part for x, part in zip("qkv", parts, strict=True)}
            if gate_up is not None:
                gate, up = gate_up.chunk(2)
                views |= {f"mlp.gate_proj.{suffix}": gate, f"mlp.up_proj.{suffix}": up}
        if layer.out_bias is not None:
            views["self_attn.o_proj.bias"] = layer.out_bias
        if layer.down_bias is not None:
            views["mlp.down_proj.bias"] = layer.down_bias
        if layer.qk_norm is not None:
            q_norm, k_norm = torch.split(layer.qk_norm, [c.num_heads, c.num_kv_heads])
            views |= {"self_attn.q_norm.weight": q_norm, "self_attn.k_norm.weight": k_norm}
        return views

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights and the rotary table, a tied head counted once."""
        tensors = {view.untyped_storage().data_ptr(): view for view in self.destinations().values()}
        return sum(t.untyped_storage().nbytes() for t in (*tensors.values(), self.rope_table))

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The hidden states [T, hidden] before the final norm; input_ids and positions [T] int64."""
        hidden = F.embedding(input_ids, self.embedding)
        cos, sin = layers.spread_rotation(self.rope_table.index_select(0, positions))
        eps = self.config.norm_eps
        for index, layer in enumerate(self.layers):
            normed = layers.rms_norm(hidden, layer.input_norm, eps)
            hidden += self._attention(index, layer, normed, cos, sin, attend)
            normed = layers.rms_norm(hidden, layer.post_norm, eps)
            gated = layers.gated(F.linear(normed, layer.gate_up, layer.gate_up_bias))
            hidden += F.linear(gated, layer.down, layer.down_bias)
        return hidden

    def _attention(
        self, index: int, layer: Layer, normed: Tensor, cos: Tensor, sin: Tensor, attend: Attend
    ) -> Tensor:
        c = self.config
        qkv = F.linear(normed, layer.qkv, layer.qkv_bias).view(normed.shape[0], -1, c.head_dim)
        rotating = qkv[:, : c.num_heads + c.num_kv_heads]
        if layer.qk_norm is not None:
            rotating = layers.head_norm(rotating, layer.qk_norm, c.norm_eps)
        rotated = layers.rotate(rotating, cos, sin)
        query, key = rotated[:, : c.num_heads], rotated[:, c.num_heads :]
        attended = attend(index, query, key, qkv[:, c.num_heads + c.num_kv_heads :])
        return F.linear(attended.reshape(normed.shape[0], c.q_size), layer.out, layer.out_bias)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [S, vocab] of hidden states [S, hidden]."""
        return F.linear(layers.rms_norm(hidden, self.norm, self.config.norm_eps), self.head)

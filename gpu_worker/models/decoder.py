"""The one decoder: every family of the registry by configuration, with packed qkv and gate-up matrices.

Owns the weights and the forward pass over a flat batch of tokens; knows neither rows nor the pool, which hide
behind `Attend`. Invariant: every weight of a checkpoint has exactly one destination, listed by
`destinations`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.models import layers
from gpu_worker.models.experts import mixture
from gpu_worker.models.layer_weights import Layer, empty_layer, layer_views
from gpu_worker.models.registry import ModelConfig
from gpu_worker.models.rope import cos_sin_table

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq, D]: stores k and v, then attends."""
Rotation = tuple[Tensor, Tensor]


class Decoder:
    """A decoder with empty weights; `loader.load` fills them.

    max_positions: rows of the rotary tables, the longest context in tokens.
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
        self.norm = self._empty_norm(config.hidden_size)
        self.layers = [
            empty_layer(config, index, self._empty, self._empty_norm) for index in range(config.num_layers)
        ]
        self.rope_table = cos_sin_table(config.rope, max_positions, device, dtype)
        self.local_rope_table = self.rope_table
        if config.local_rope is not None:
            self.local_rope_table = cos_sin_table(config.local_rope, max_positions, device, dtype)
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype, device=device)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _empty_norm(self, *shape: int) -> Tensor:
        """Norms that are added to 1 keep their bits, as transformers keeps them: 1 + w in float32."""
        narrow = self.dtype in (torch.bfloat16, torch.float16)
        dtype = torch.float32 if narrow and self.config.norm_offset else self.dtype
        return torch.empty(shape, dtype=dtype, device=self.device)

    def destinations(self) -> dict[str, Tensor]:
        """Each checkpoint name (Hugging Face) and the view its values are copied into; shapes are the file's.

        A q_norm or k_norm weight [D] is copied to all its heads: its view is [H, D] and broadcasts.
        """
        views = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        if not self.config.tie_embeddings:
            views["lm_head.weight"] = self.head
        for index, layer in enumerate(self.layers):
            for name, view in layer_views(self.config, layer).items():
                views[f"model.layers.{index}.{name}"] = view
        return views

    def finish_loading(self) -> None:
        """Called once, when every destination holds the checkpoint's values."""
        if self.config.norm_offset:
            for norm in (self.norm, *(norm for layer in self.layers for norm in layer.norms)):
                norm.add_(1)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights and the rotary tables, a tied head counted once."""
        held = (*self.destinations().values(), self.rope_table, self.local_rope_table)
        tensors = {view.untyped_storage().data_ptr(): view for view in held}
        return sum(t.untyped_storage().nbytes() for t in tensors.values())

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The hidden states [T, hidden] before the final norm; input_ids and positions [T] int64."""
        hidden = self.embed(input_ids)
        rotation = layers.spread_rotation(self.rope_table.index_select(0, positions))
        local = rotation
        if self.config.local_rope is not None:
            local = layers.spread_rotation(self.local_rope_table.index_select(0, positions))
        for index, layer in enumerate(self.layers):
            turn = local if self.config.local_layers[index] else rotation
            attended = self._attention(index, layer, self._norm(hidden, layer.input_norm), turn, attend)
            hidden += self._norm(attended, layer.attention_out_norm)
            hidden += self._norm(self._mlp(layer, self._norm(hidden, layer.post_norm)), layer.mlp_out_norm)
        return hidden

    def embed(self, input_ids: Tensor) -> Tensor:
        """The first hidden states [T, hidden] of input_ids [T]."""
        hidden = F.embedding(input_ids, self.embedding)
        return hidden if self.config.embedding_scale == 1 else hidden * self._embedding_scale

    def _norm(self, hidden: Tensor, weight: Tensor | None) -> Tensor:
        return hidden if weight is None else layers.rms_norm(hidden, weight, self.config.norm_eps)

    def _attention(
        self, index: int, layer: Layer, normed: Tensor, rotation: Rotation, attend: Attend
    ) -> Tensor:
        c = self.config
        qkv = F.linear(normed, layer.qkv, layer.qkv_bias).view(normed.shape[0], -1, c.head_dim)
        rotating = qkv[:, : c.num_heads + c.num_kv_heads]
        if layer.qk_norm is not None:
            rotating = self._qk_norm(rotating, layer.qk_norm)
        rotated = layers.rotate(rotating, *rotation)
        query, key = rotated[:, : c.num_heads], rotated[:, c.num_heads :]
        attended = attend(index, query, key, qkv[:, c.num_heads + c.num_kv_heads :])
        return F.linear(attended.reshape(normed.shape[0], c.q_size), layer.out, layer.out_bias)

    def _qk_norm(self, heads: Tensor, weight: Tensor) -> Tensor:
        c = self.config
        if c.qk_norm == "head":
            return layers.head_norm(heads, weight, c.norm_eps)
        query, key = heads[:, : c.num_heads], heads[:, c.num_heads :]
        parts = ((query, weight[: c.num_heads]), (key, weight[c.num_heads :]))
        normed = [
            layers.rms_norm(x.flatten(1), scale.flatten(), c.norm_eps).view(x.shape) for x, scale in parts
        ]
        return torch.cat(normed, 1)

    def _mlp(self, layer: Layer, normed: Tensor) -> Tensor:
        c = self.config
        if layer.experts is not None:
            assert c.experts is not None
            return mixture(normed, layer.experts, c.experts.chosen, c.experts.normalize, c.activation)
        gate_up, down = layer.mlp
        gated = layers.gated(F.linear(normed, gate_up, layer.gate_up_bias), c.activation)
        return F.linear(gated, down, layer.down_bias)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [S, vocab] of hidden states [S, hidden]."""
        logits = F.linear(layers.rms_norm(hidden, self.norm, self.config.norm_eps), self.head)
        return layers.soft_cap(logits, self.config.logits_softcap)

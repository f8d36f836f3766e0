"""One decoder layer's weights and the names that checkpoints give them.

Owns the empty tensors of a layer and the map from Hugging Face names to views of them; knows no arithmetic.
Invariant: every weight of a layer has exactly one name, and every view lies in one of the layer's tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.models.experts import Experts
from gpu_worker.models.registry import ModelConfig

Empty = Callable[..., Tensor]
"""(sizes) -> an uninitialised tensor of the decoder's dtype and device."""


@dataclass(slots=True)
class Layer:
    """q, k and v are rows of `qkv`; gate and up are rows of `gate_up`.

    input_norm, post_norm: before attention and before the feed-forward block; attention_out_norm,
    mlp_out_norm: of what they add to the residual stream. A layer has experts, or gate_up and down.
    """

    qkv: Tensor
    out: Tensor
    input_norm: Tensor | None = None
    post_norm: Tensor | None = None
    attention_out_norm: Tensor | None = None
    mlp_out_norm: Tensor | None = None
    gate_up: Tensor | None = None
    down: Tensor | None = None
    experts: Experts | None = None
    qkv_bias: Tensor | None = None
    out_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    qk_norm: Tensor | None = None

    @property
    def mlp(self) -> tuple[Tensor, Tensor]:
        """gate_up and down, of a layer without experts."""
        assert self.gate_up is not None
        assert self.down is not None
        return self.gate_up, self.down

    @property
    def norms(self) -> list[Tensor]:
        """All of its norm weights."""
        every = (self.input_norm, self.post_norm, self.attention_out_norm, self.mlp_out_norm, self.qk_norm)
        return [norm for norm in every if norm is not None]


NORM_NAMES = {
    "before": {"input_layernorm": "input_norm", "post_attention_layernorm": "post_norm"},
    "after": {
        "post_attention_layernorm": "attention_out_norm",
        "post_feedforward_layernorm": "mlp_out_norm",
    },
    "around": {
        "input_layernorm": "input_norm",
        "post_attention_layernorm": "attention_out_norm",
        "pre_feedforward_layernorm": "post_norm",
        "post_feedforward_layernorm": "mlp_out_norm",
    },
}


def empty_layer(c: ModelConfig, index: int, empty: Empty, empty_norm: Empty) -> Layer:
    """The layer of this number without values."""
    qkv_size = c.q_size + 2 * c.kv_size
    layer = Layer(qkv=empty(qkv_size, c.hidden_size), out=empty(c.hidden_size, c.q_size))
    for field in NORM_NAMES[c.norms].values():
        setattr(layer, field, empty_norm(c.hidden_size))
    if c.experts is not None and index not in c.experts.dense_layers:
        count, size = c.experts.count, c.experts.size
        layer.experts = Experts(
            router=empty(count, c.hidden_size),
            gate_up=empty(count, 2 * size, c.hidden_size),
            down=empty(count, c.hidden_size, size),
        )
    else:
        layer.gate_up = empty(2 * c.intermediate_size, c.hidden_size)
        layer.down = empty(c.hidden_size, c.intermediate_size)
    if c.qkv_bias:
        layer.qkv_bias = empty(qkv_size)
    if c.out_bias:
        layer.out_bias = empty(c.hidden_size)
    if c.mlp_bias:
        layer.gate_up_bias = empty(2 * c.intermediate_size)
        layer.down_bias = empty(c.hidden_size)
    if c.qk_norm != "none":
        layer.qk_norm = empty_norm(c.num_heads + c.num_kv_heads, c.head_dim)
    return layer


def layer_views(c: ModelConfig, layer: Layer) -> dict[str, Tensor]:
    """Each name behind `model.layers.N.` and the view its values are copied into."""
    views = {f"{name}.weight": getattr(layer, field) for name, field in NORM_NAMES[c.norms].items()}
    views["self_attn.o_proj.weight"] = layer.out
    if layer.out_bias is not None:
        views["self_attn.o_proj.bias"] = layer.out_bias
    for suffix, qkv in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
        if qkv is not None and c.fused:
            views[f"self_attn.qkv_proj.{suffix}"] = qkv
        elif qkv is not None:
            parts = torch.split(qkv, [c.q_size, c.kv_size, c.kv_size])
            views |= {f"self_attn.{x}_proj.{suffix}": part for x, part in zip("qkv", parts, strict=True)}
    if layer.qk_norm is not None:
        q_norm, k_norm = torch.split(layer.qk_norm, [c.num_heads, c.num_kv_heads])
        if c.qk_norm == "width":
            q_norm, k_norm = q_norm.view(-1), k_norm.view(-1)
        views |= {"self_attn.q_norm.weight": q_norm, "self_attn.k_norm.weight": k_norm}
    return views | (_mlp_views(c, layer) if layer.experts is None else _expert_views(c, layer.experts))


def _mlp_views(c: ModelConfig, layer: Layer) -> dict[str, Tensor]:
    views: dict[str, Tensor] = {}
    for suffix, gate_up, down in (
        ("weight", layer.gate_up, layer.down),
        ("bias", layer.gate_up_bias, layer.down_bias),
    ):
        if gate_up is None or down is None:
            continue
        views[f"mlp.down_proj.{suffix}"] = down
        if c.fused:
            views[f"mlp.gate_up_proj.{suffix}"] = gate_up
        else:
            gate, up = gate_up.chunk(2)
            views |= {f"mlp.gate_proj.{suffix}": gate, f"mlp.up_proj.{suffix}": up}
    return views


def _expert_views(c: ModelConfig, experts: Experts) -> dict[str, Tensor]:
    assert c.experts is not None
    block, names = "mlp", ("gate_proj", "up_proj", "down_proj")
    if c.experts.naming == "mixtral":
        block, names = "block_sparse_moe", ("w1", "w3", "w2")
    views = {f"{block}.gate.weight": experts.router}
    for number in range(c.experts.count):
        gate, up = experts.gate_up[number].chunk(2)
        for name, view in zip(names, (gate, up, experts.down[number]), strict=True):
            views[f"{block}.experts.{number}.{name}.weight"] = view
    return views

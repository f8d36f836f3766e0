"""Which models the decoder can be: a config.json in, a checked ModelConfig out.

Owns the table of architectures and the reading of their configs; knows no weights. Invariant: a config
that the decoder would compute wrongly (unknown architecture, activation, window, rope) is refused by
name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpu_worker.errors import ModelError, UnsupportedModelError
from gpu_worker.models import rope as rope_module
from gpu_worker.models.config_json import eos_ids, number, positive, refuse_code, stored_dtype, whole
from gpu_worker.models.rope import RopeConfig

_MOST_LAYERS = 1 << 12
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
Norms = Literal["before", "after", "around"]
QkNorm = Literal["none", "head", "width"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What tells one family's decoder from another's.

    norms: where RMSNorms stand, before a block (Llama), after it (OLMo-2), or both (Gemma 2). norm_offset:
    stored norm weights are added to 1. qk_norm: of q and k, per head or over the whole width. fused: the
    checkpoint holds qkv and gate-up in one piece. window: which layers have it where the config does not list
    layer_types: "all", "late" (from max_window_layers on), or all but every n-th one (a number). switched:
    the window counts only with use_sliding_window. experts: how a mixture's weights are named. local_rope:
    layers with a window have a rope of their own. defaults: keys that a config.json of the family may leave
    out.
    """

    norms: Norms = "before"
    norm_offset: bool = False
    qk_norm: QkNorm = "none"
    qkv_bias: bool = False
    fused: bool = False
    window: Literal["none", "all", "late"] | int = "none"
    switched: bool = False
    experts: Literal["none", "mixtral", "qwen"] = "none"
    scaled_embedding: bool = False
    local_rope: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


_GEMMA = {"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
_GEMMA_2 = {"query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA_3 = {"query_pre_attn_scalar": 256, "rope_theta": 1e6, "rope_local_base_freq": 1e4}

ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(),
    "MistralForCausalLM": Architecture(window="all"),
    "MixtralForCausalLM": Architecture(window="all", experts="mixtral"),
    "Qwen2ForCausalLM": Architecture(qkv_bias=True, window="late", switched=True),
    "Qwen3ForCausalLM": Architecture(
        qk_norm="head", window="late", switched=True, defaults={"head_dim": 128}
    ),
    "Qwen3MoeForCausalLM": Architecture(
        qk_norm="head", window="all", switched=True, experts="qwen", defaults={"head_dim": 128}
    ),
    "Olmo2ForCausalLM": Architecture(norms="after", qk_norm="width"),
    "Phi3ForCausalLM": Architecture(fused=True, window="all"),
    "GemmaForCausalLM": Architecture(norm_offset=True, scaled_embedding=True, defaults=_GEMMA),
    "Gemma2ForCausalLM": Architecture(
        norms="around", norm_offset=True, window=2, scaled_embedding=True, defaults=_GEMMA | _GEMMA_2
    ),
    "Gemma3ForCausalLM": Architecture(
        norms="around",
        norm_offset=True,
        qk_norm="head",
        window=6,
        scaled_embedding=True,
        local_rope=True,
        defaults=_GEMMA | _GEMMA_3,
    ),
}


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts: `count` feed-forward blocks of `size`, `chosen` of them for a token.

    normalize: the chosen ones' probabilities are made to add up to 1. dense_layers have one plain block.
    """

    count: int
    chosen: int
    size: int
    normalize: bool
    naming: str
    dense_layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What serving needs of any model. Sizes are in elements; context_limit in tokens; eos_token_ids is the
    union of config and generation_config. attention_softcap is 0 where there is none; windows in tokens, one
    a layer, 0: none.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eos_token_ids: tuple[int, ...]
    stored_dtype: str
    context_limit: int
    attention_scale: float
    attention_softcap: float
    windows: tuple[int, ...]

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class ModelConfig(ModelShape):
    """A decoder. logits_softcap is 0 and experts None where there are none. local_layers: those that rotate
    by local_rope.
    """

    norm_eps: float
    norms: Norms
    norm_offset: bool
    qk_norm: QkNorm
    tie_embeddings: bool
    fused: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    activation: str
    embedding_scale: float
    logits_softcap: float
    rope: RopeConfig
    local_rope: RopeConfig | None
    local_layers: tuple[bool, ...]
    experts: ExpertsConfig | None


def parse_config(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """Checks a config (Hugging Face keys) and fills its defaults. Raises ModelError naming the key."""
    name = _architecture_name(config)
    family = ARCHITECTURES[name]
    config = {**family.defaults, **config}
    _refuse_unsupported(config)
    hidden, heads = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    kv_heads = positive(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"num_key_value_heads: {kv_heads} does not divide num_attention_heads {heads}")
    head_dim = positive(config, "head_dim", family.defaults.get("head_dim") or hidden // heads)
    if head_dim % 2:
        raise ModelError(f"head_dim: {head_dim} is odd")
    layers, bias = (
        positive(config, "num_hidden_layers", most=_MOST_LAYERS),
        bool(config.get("attention_bias", False)),
    )
    rope, local_rope = rope_module.parse_both(config, head_dim, family.local_rope)
    # Gemma 3 states the limit that its scaled positions cover.
    limit = rope.max_position if family.local_rope else rope.context_limit
    sliding = _sliding_layers(config, family, layers)
    window = positive(config, "sliding_window") if any(sliding) else 0
    return ModelConfig(
        architecture=name,
        vocab_size=positive(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=positive(config, "intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        eos_token_ids=eos_ids(config, generation or {}),
        stored_dtype=stored_dtype(config),
        context_limit=limit,
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        norms=family.norms,
        norm_offset=family.norm_offset,
        qk_norm=family.qk_norm,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        fused=family.fused,
        qkv_bias=family.qkv_bias or bias,
        out_bias=not family.qkv_bias and bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        activation=ACTIVATIONS[_activation(config)],
        embedding_scale=hidden**0.5 if family.scaled_embedding else 1.0,
        attention_scale=(number(config, "query_pre_attn_scalar") or head_dim) ** -0.5,
        attention_softcap=number(config, "attn_logit_softcapping"),
        logits_softcap=number(config, "final_logit_softcapping"),
        windows=tuple(window if here and window < limit else 0 for here in sliding),
        rope=rope,
        local_rope=local_rope,
        local_layers=sliding if local_rope else (False,) * layers,
        experts=_experts(config, family, layers),
    )


def _architecture_name(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    refuse_code(config)
    if not isinstance(names, list) or len(names) != 1 or str(names[0]) not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"architectures: {names!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    return str(names[0])


def _activation(config: Mapping[str, Any]) -> str:
    return str(config.get("hidden_activation") or config.get("hidden_act") or "silu")


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    if _activation(config) not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise UnsupportedModelError(f"hidden_act: {_activation(config)!r} is not supported, only {known}")
    if config.get("quantization_config"):
        raise UnsupportedModelError("quantization_config: quantised safetensors are not supported")
    if (config.get("pretraining_tp") or 1) != 1:
        raise UnsupportedModelError(f"pretraining_tp: {config['pretraining_tp']} is not supported, only 1")
    if config.get("use_bidirectional_attention"):
        raise ModelError("use_bidirectional_attention: attention to later tokens is not supported")


def _sliding_layers(config: Mapping[str, Any], family: Architecture, layers: int) -> tuple[bool, ...]:
    """Which layers attend through a window. Raises ModelError for what the family does not have."""
    none = (False,) * layers
    kinds = config.get("layer_types")
    if kinds is not None and not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
        raise ModelError(f"layer_types: {kinds!r:.60} is not a list of names")
    odd = set(kinds or ()) - {"full_attention", "sliding_attention"}
    if odd:
        raise UnsupportedModelError(f"layer_types: {sorted(odd)} are not supported")
    asked = bool(config.get("sliding_window"))
    if family.switched:
        asked = asked and bool(config.get("use_sliding_window"))
    if family.window == "none":
        if config.get("use_sliding_window") or "sliding_attention" in (kinds or ()):
            raise UnsupportedModelError("sliding_window: a window is not part of this architecture")
        return none
    if not asked:
        return none
    if family.window == "all":
        return (True,) * layers
    if kinds:
        if len(kinds) < layers:
            raise ModelError(f"layer_types: {len(kinds)} entries, num_hidden_layers is {layers}")
        return tuple(kind == "sliding_attention" for kind in kinds[:layers])
    if family.window == "late":
        first = whole(config, "max_window_layers", layers)
        return tuple(layer >= first for layer in range(layers))
    every = positive(config, "sliding_window_pattern", family.window)
    return tuple((layer + 1) % every != 0 for layer in range(layers))


def _experts(config: Mapping[str, Any], family: Architecture, layers: int) -> ExpertsConfig | None:
    if family.experts == "none":
        return None
    mixtral = family.experts == "mixtral"
    count = positive(config, "num_local_experts" if config.get("num_local_experts") else "num_experts")
    chosen = positive(config, "num_experts_per_tok")
    if chosen > count:
        raise ModelError(f"num_experts_per_tok: {chosen}, the model has {count} experts")
    step = positive(config, "decoder_sparse_step", 1)
    listed = config.get("mlp_only_layers") or []
    if not isinstance(listed, list):
        raise ModelError(f"mlp_only_layers: {listed!r:.60} is not a list of layers")
    dense = tuple(layer for layer in range(layers) if layer in listed or (layer + 1) % step)
    return ExpertsConfig(
        count=count,
        chosen=chosen,
        size=positive(config, "intermediate_size" if mixtral else "moe_intermediate_size"),
        normalize=mixtral or bool(config.get("norm_topk_prob", False)),
        naming=family.experts,
        dense_layers=() if mixtral else dense,
    )

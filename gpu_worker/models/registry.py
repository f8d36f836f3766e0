"""Which models the decoder can be: a config.json in, a checked ModelConfig out.

Owns the table of architectures and the reading of their configs; knows no weights. Invariant: a config
that the decoder would compute wrongly (unknown architecture, activation, window, rope) is refused by
name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_worker.errors import ModelError
from gpu_worker.models import rope as rope_module
from gpu_worker.models.rope import RopeConfig

MAX_CONFIG_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Architecture:
    """What tells one family's decoder from another's."""

    qk_norm: bool
    default_head_dim: int | None
    qkv_bias: bool = False


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(qk_norm=False, default_head_dim=None),
    "MistralForCausalLM": Architecture(qk_norm=False, default_head_dim=None),
    "Qwen2ForCausalLM": Architecture(qk_norm=False, default_head_dim=None, qkv_bias=True),
    "Qwen3ForCausalLM": Architecture(qk_norm=True, default_head_dim=128),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's shape. Sizes are in elements; eos_token_ids is the union of config and
    generation_config.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    tie_embeddings: bool
    qk_norm: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    rope: RopeConfig
    eos_token_ids: tuple[int, ...]
    stored_dtype: str

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of at most MAX_CONFIG_BYTES. Raises ModelError naming the file."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ModelError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return value


def parse_config(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """Checks a config (Hugging Face keys) and fills its defaults. Raises ModelError naming the key."""
    name = _architecture_name(config)
    family = ARCHITECTURES[name]
    _refuse_unsupported(config)
    hidden, heads = _positive(config, "hidden_size"), _positive(config, "num_attention_heads")
    kv_heads = _positive(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"num_key_value_heads: {kv_heads} does not divide num_attention_heads {heads}")
    head_dim = _positive(config, "head_dim", family.default_head_dim or hidden // heads)
    if head_dim % 2:
        raise ModelError(f"head_dim: {head_dim} is odd")
    return ModelConfig(
        architecture=name,
        vocab_size=_positive(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_positive(config, "intermediate_size"),
        num_layers=_positive(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        qk_norm=family.qk_norm,
        qkv_bias=family.qkv_bias or bool(config.get("attention_bias", False)),
        out_bias=not family.qkv_bias and bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        rope=rope_module.parse(config, head_dim),
        eos_token_ids=_eos_ids(config, generation or {}),
        stored_dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )


def _architecture_name(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    if config.get("auto_map"):
        raise ModelError(
            "auto_map: code from a model folder is never run; remove the key if the model needs none"
        )
    if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
        raise ModelError(
            f"architectures: {names!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    return str(names[0])


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"hidden_act: {config['hidden_act']!r} is not supported, only 'silu'")
    if config.get("use_sliding_window"):
        raise ModelError("use_sliding_window: a sliding window is not supported")
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True) and window < _positions(config):
        raise ModelError(
            f"sliding_window: {window} tokens are fewer than the model's positions, not supported"
        )
    layer_types = set(config.get("layer_types") or ()) - {"full_attention"}
    if layer_types:
        raise ModelError(f"layer_types: {sorted(layer_types)} are not supported, only 'full_attention'")
    if config.get("quantization_config"):
        raise ModelError("quantization_config: quantised safetensors are not supported")
    if (config.get("pretraining_tp") or 1) != 1:
        raise ModelError(f"pretraining_tp: {config['pretraining_tp']} is not supported, only 1")


def _positions(config: Mapping[str, Any]) -> int:
    return int(config.get("max_position_embeddings") or 2048)


def _positive(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{key}: {value!r} is not a positive whole number")
    return value


def _eos_ids(*sources: Mapping[str, Any]) -> tuple[int, ...]:
    ids: set[int] = set()
    for source in sources:
        value = source.get("eos_token_id")
        if value is not None:
            ids.update(value if isinstance(value, list) else [value])
    bad = [value for value in ids if not isinstance(value, int) or value < 0]
    if bad:
        raise ModelError(f"eos_token_id: {bad!r} are not token ids")
    return tuple(sorted(ids))

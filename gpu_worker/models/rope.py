"""Rotary position embedding: the frequencies of every variant and the cos/sin table of a model.

Owns the reading of a config's rope settings and the table [positions, rotary_dim / 2]; knows no tensor of a
step. Invariant: a row of the table depends on its position alone, so that a cached key is right for every
later reader.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gpu_worker.errors import ModelError, UnsupportedModelError
from gpu_worker.models.config_json import number, positive

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "factors")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rope settings with every default filled in. Lengths are in tokens.

    kind: one of KINDS. `factors` divides the default frequencies by given numbers (how GGUF files store
    llama3). max_position: the config's max_position_embeddings. original_max: the length the model was
    trained for. rotary_dim: dimensions of a head that rotate, the first ones. short_factors, long_factors:
    longrope's, for contexts up to original_max and beyond.
    """

    kind: str
    theta: float
    rotary_dim: int
    max_position: int
    original_max: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    factors: tuple[float, ...] = ()
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    @property
    def context_limit(self) -> int:
        """Tokens that the scaled positions cover. llama3 checkpoints already state the scaled limit."""
        if self.kind in ("linear", "dynamic", "yarn"):
            return int(self.original_max * self.factor)
        return self.max_position


def parse_both(
    config: Mapping[str, Any], head_dim: int, has_local: bool
) -> tuple[RopeConfig, RopeConfig | None]:
    """The model's rope, and that of layers with a window where the family has_local (Gemma 3).

    Reads rope_parameters by layer type (transformers 5), or rope_local_base_freq. Raises as `parse` does.
    """
    if not has_local:
        return parse(config, head_dim), None
    given = config.get("rope_parameters") or {}
    if "full_attention" not in given:
        local = {"rope_scaling": None, "rope_parameters": None, "rope_theta": config["rope_local_base_freq"]}
        return parse(config, head_dim), parse({**config, **local}, head_dim)
    both = [
        parse(
            {**config, "rope_theta": theta, "rope_scaling": None, "rope_parameters": given.get(kind)},
            head_dim,
        )
        for kind, theta in (
            ("full_attention", config["rope_theta"]),
            ("sliding_attention", config["rope_local_base_freq"]),
        )
    ]
    return both[0], both[1]


def parse(config: Mapping[str, Any], head_dim: int) -> RopeConfig:
    """Reads `rope_parameters` (transformers 5) or `rope_scaling` with `rope_theta` (before), kind under
    either key.

    Raises ModelError, naming the field, for an unknown kind or a missing number.
    """
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ModelError(f"rope_scaling: {given!r} is not an object")
    if any(isinstance(value, Mapping) for value in given.values()):
        raise UnsupportedModelError(
            "rope_parameters: settings of their own for some layers are not supported"
        )
    kind = given.get("rope_type", given.get("type", "default"))
    kind = "longrope" if "long_factor" in given else kind
    if kind not in KINDS:
        raise UnsupportedModelError(f"rope_type: {kind!r} is not known; known are {', '.join(KINDS)}")
    rotary_dim = _rotary_dim(config, given, head_dim)
    max_position = positive(config, "max_position_embeddings", 2048)
    return RopeConfig(
        kind=kind,
        theta=number(given, "rope_theta") or number(config, "rope_theta", 10000.0),
        rotary_dim=rotary_dim,
        max_position=max_position,
        original_max=_original_max(config, given, kind, max_position),
        **_scaling(config, given, kind, max_position, rotary_dim),
    )


def _rotary_dim(config: Mapping[str, Any], given: Mapping[str, Any], head_dim: int) -> int:
    part = given.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    size = int(head_dim * part) if isinstance(part, int | float) else 0
    if not 2 <= size <= head_dim or size % 2:
        raise ModelError(
            f"partial_rotary_factor: {part} of head_dim {head_dim} is no even number of dimensions"
        )
    return size


def _original_max(config: Mapping[str, Any], given: Mapping[str, Any], kind: str, max_position: int) -> int:
    if kind not in ("llama3", "yarn", "longrope"):
        return max_position
    name = "original_max_position_embeddings"
    return positive(*((config, name) if config.get(name) else _own(given, name)), max_position)


def _scaling(
    config: Mapping[str, Any], given: Mapping[str, Any], kind: str, max_position: int, rotary_dim: int
) -> dict[str, Any]:
    if kind == "default":
        return {}
    if kind == "longrope":
        original = _original_max(config, given, kind, max_position)
        return _longrope_scaling(given, max_position, original, rotary_dim)
    if kind == "factors":
        return {"factors": _numbers(given, "factors", rotary_dim // 2)}
    if kind == "yarn":
        return _yarn_scaling(given, max_position)
    scaling = {"factor": _number(given, "factor", kind)}
    if kind == "llama3":
        scaling |= {key: _number(given, key, kind) for key in ("low_freq_factor", "high_freq_factor")}
    return scaling


def _yarn_scaling(given: Mapping[str, Any], max_position: int) -> dict[str, Any]:
    original = positive(*_own(given, "original_max_position_embeddings"), max_position)
    factor = number(*_own(given, "factor"), max_position / original)
    return {
        "factor": factor,
        "beta_fast": number(*_own(given, "beta_fast"), 32.0),
        "beta_slow": number(*_own(given, "beta_slow"), 1.0),
        "truncate": bool(given.get("truncate", True)),
        "attention_factor": _yarn_attention_factor(given, factor),
    }


def _longrope_scaling(
    given: Mapping[str, Any], max_position: int, original: int, rotary_dim: int
) -> dict[str, Any]:
    lists = {f"{name}s": _numbers(given, name, rotary_dim // 2) for name in ("short_factor", "long_factor")}
    factor = number(*_own(given, "factor"), max_position / original)
    attention = number(*_own(given, "attention_factor"))
    if not attention:
        attention = math.sqrt(1 + math.log(factor) / math.log(max(2, original))) if factor > 1 else 1.0
    return {"factor": factor, "attention_factor": attention, **lists}


def _numbers(given: Mapping[str, Any], name: str, count: int) -> tuple[float, ...]:
    values = given.get(name)
    if not isinstance(values, list) or len(values) != count or None in values:
        raise ModelError(f"rope_scaling.{name}: expected a list of {count} numbers")
    return tuple(number(*_own({name: value}, name)) for value in values)


def _yarn_attention_factor(given: Mapping[str, Any], factor: float) -> float:
    if given.get("attention_factor") is not None:
        return number(*_own(given, "attention_factor"))
    if given.get("mscale") and given.get("mscale_all_dim"):
        mscale, all_dim = (number(*_own(given, name)) for name in ("mscale", "mscale_all_dim"))
        return _mscale(factor, mscale) / _mscale(factor, all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _number(given: Mapping[str, Any], key: str, kind: str) -> float:
    value = number(*_own(given, key))
    if not value:
        raise ModelError(f"rope_scaling.{key}: is missing (rope_type {kind})")
    return value


def _own(given: Mapping[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """A field of the scaling by its whole path, as config_json reads and names it."""
    path = f"rope_scaling.{key}"
    return {path: given.get(key)}, path


def cos_sin_table(
    rope: RopeConfig, num_positions: int, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """The table [num_positions, 2, rotary_dim / 2] of cos (index 0) and sin (index 1), computed in float32.

    LongRoPE (arXiv 2402.13753) has two sets of factors; num_positions, the longest context served, chooses
    one for all, for a cached key must suit every later reader. Dynamic NTK changes its base with the
    sequence's length; here row p has the base of a sequence that ends at p, which is what token-by-token
    decoding in transformers computes, and makes cached keys shareable.
    """
    positions = torch.arange(num_positions, dtype=torch.float32)
    if rope.kind == "dynamic":
        angles = positions[:, None] * _dynamic_frequencies(rope, num_positions)
    else:
        angles = positions[:, None] * frequencies(rope, num_positions)
    table = torch.stack((angles.cos(), angles.sin()), dim=1) * rope.attention_factor
    return table.to(device=device, dtype=dtype)


def frequencies(rope: RopeConfig, num_positions: int = 0) -> torch.Tensor:
    """Inverse frequencies [rotary_dim / 2], float32, of every kind but dynamic past its trained length.

    num_positions: the longest context, in tokens; only longrope asks.
    """
    default = 1.0 / _powers(rope.theta, rope.rotary_dim)
    if rope.kind == "longrope":
        factors = rope.long_factors if num_positions > rope.original_max else rope.short_factors
        return 1.0 / (torch.tensor(factors, dtype=torch.float32) * _powers(rope.theta, rope.rotary_dim))
    if rope.kind == "linear":
        return default / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, default)
    if rope.kind == "yarn":
        return _yarn(rope)
    if rope.kind == "factors":
        return default / torch.tensor(rope.factors, dtype=torch.float32)
    return default


def _powers(theta: float, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    return torch.pow(theta, exponents)


def _dynamic_frequencies(rope: RopeConfig, num_positions: int) -> torch.Tensor:
    """[positions, rotary_dim / 2]: NTK-aware scaling (u/bloc97, u/emozilla) with the length up to each
    position.
    """
    rows = torch.empty(num_positions, rope.rotary_dim // 2, dtype=torch.float32)
    rows[: rope.original_max] = 1.0 / _powers(rope.theta, rope.rotary_dim)
    exponent = rope.rotary_dim / (rope.rotary_dim - 2)
    for position in range(rope.original_max, num_positions):
        ratio = torch.tensor(position + 1) * rope.factor / rope.original_max - (rope.factor - 1)
        base = rope.theta * ratio**exponent
        exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
        rows[position] = 1.0 / (base**exponents)
    return rows


def _llama3(rope: RopeConfig, default: torch.Tensor) -> torch.Tensor:
    """Llama 3.1's scaling: long wavelengths divided by the factor, short kept, a smooth passage between."""
    wavelength = 2 * math.pi / default
    low = rope.original_max / rope.low_freq_factor
    high = rope.original_max / rope.high_freq_factor
    spread = rope.high_freq_factor - rope.low_freq_factor
    smooth = (rope.original_max / wavelength - rope.low_freq_factor) / spread
    scaled = torch.where(wavelength > low, default / rope.factor, default)
    blended = (1 - smooth) * scaled / rope.factor + smooth * scaled
    between = (wavelength >= high) & (wavelength <= low)
    return torch.where(between, blended, scaled)


def _yarn(rope: RopeConfig) -> torch.Tensor:
    """YaRN (Peng et al., arXiv 2309.00071): interpolate low frequencies, keep high ones, ramp between."""
    powers = _powers(rope.theta, rope.rotary_dim)
    low, high = (_correction(rope, rotations) for rotations in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rope.rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (rope.factor * powers) * (1 - keep) + 1.0 / powers * keep


def _correction(rope: RopeConfig, rotations: float) -> float:
    turns = rope.original_max / (rotations * 2 * math.pi)
    return rope.rotary_dim * math.log(turns) / (2 * math.log(rope.theta))

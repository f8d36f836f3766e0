"""Rotary position embedding: the frequencies of every variant and the cos/sin table of a model.

Owns the reading of a config's rope settings and the table [positions, head_dim / 2]; knows no tensor of a
step. Invariant: a row of the table depends on its position alone, so that a cached key is right for every
later reader.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gpu_worker.errors import ModelError

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "factors")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rope settings with every default filled in. Lengths are in tokens.

    kind: one of KINDS. `factors` divides the default frequencies by given numbers (how GGUF files store
    llama3). max_position: the config's max_position_embeddings. original_max: the length the model was
    trained for.
    """

    kind: str
    theta: float
    head_dim: int
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

    @property
    def context_limit(self) -> int:
        """Tokens that the scaled positions cover. llama3 checkpoints already state the scaled limit."""
        if self.kind in ("linear", "dynamic", "yarn"):
            return int(self.original_max * self.factor)
        return self.max_position


def parse(config: Mapping[str, Any], head_dim: int) -> RopeConfig:
    """Reads `rope_parameters` (transformers 5) or `rope_scaling` with `rope_theta` (before), kind under
    either key.

    Raises ModelError, naming the field, for an unknown kind, a partial rotation, or a missing number.
    """
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ModelError(f"rope_scaling: {given!r} is not an object")
    if any(isinstance(value, Mapping) for value in given.values()):
        raise ModelError("rope_parameters: settings of their own for some layers are not supported")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in KINDS:
        raise ModelError(f"rope_type: {kind!r} is not known; known are {', '.join(KINDS)}")
    partial = given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1, 1.0):
        raise ModelError(f"partial_rotary_factor: {partial} is not supported, only 1.0")
    max_position = int(config.get("max_position_embeddings") or 2048)
    return RopeConfig(
        kind=kind,
        theta=float(given.get("rope_theta") or config.get("rope_theta") or 10000.0),
        head_dim=head_dim,
        max_position=max_position,
        original_max=_original_max(config, given, kind, max_position),
        **_scaling(given, kind, max_position),
    )


def _original_max(config: Mapping[str, Any], given: Mapping[str, Any], kind: str, max_position: int) -> int:
    if kind not in ("llama3", "yarn"):
        return max_position
    outer = config.get("original_max_position_embeddings")
    return int(outer or given.get("original_max_position_embeddings") or max_position)


def _scaling(given: Mapping[str, Any], kind: str, max_position: int) -> dict[str, Any]:
    if kind == "default":
        return {}
    if kind == "factors":
        return {"factors": tuple(float(value) for value in given["factors"])}
    if kind == "yarn":
        return _yarn_scaling(given, max_position)
    scaling = {"factor": _number(given, "factor", kind)}
    if kind == "llama3":
        scaling |= {key: _number(given, key, kind) for key in ("low_freq_factor", "high_freq_factor")}
    return scaling


def _yarn_scaling(given: Mapping[str, Any], max_position: int) -> dict[str, Any]:
    original = given.get("original_max_position_embeddings") or max_position
    factor = float(given.get("factor") or max_position / original)
    return {
        "factor": factor,
        "beta_fast": float(given.get("beta_fast") or 32.0),
        "beta_slow": float(given.get("beta_slow") or 1.0),
        "truncate": bool(given.get("truncate", True)),
        "attention_factor": _yarn_attention_factor(given, factor),
    }


def _yarn_attention_factor(given: Mapping[str, Any], factor: float) -> float:
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    mscale, mscale_all = given.get("mscale"), given.get("mscale_all_dim")
    if mscale and mscale_all:
        return _mscale(factor, float(mscale)) / _mscale(factor, float(mscale_all))
    return _mscale(factor, 1.0)


def _mscale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _number(given: Mapping[str, Any], key: str, kind: str) -> float:
    value = given.get(key)
    if not isinstance(value, int | float) or value <= 0:
        raise ModelError(f"rope_scaling.{key}: {value!r} is not a positive number (rope_type {kind})")
    return float(value)


def cos_sin_table(
    rope: RopeConfig, num_positions: int, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """The table [num_positions, 2, head_dim / 2] of cos (index 0) and sin (index 1), computed in float32.

    Dynamic NTK changes its base with the sequence's length; here row p has the base of a sequence that
    ends at p, which is what token-by-token decoding in transformers computes, and makes cached keys
    shareable.
    """
    positions = torch.arange(num_positions, dtype=torch.float32)
    if rope.kind == "dynamic":
        angles = positions[:, None] * _dynamic_frequencies(rope, num_positions)
    else:
        angles = positions[:, None] * frequencies(rope)
    table = torch.stack((angles.cos(), angles.sin()), dim=1) * rope.attention_factor
    return table.to(device=device, dtype=dtype)


def frequencies(rope: RopeConfig) -> torch.Tensor:
    """Inverse frequencies [head_dim / 2], float32, of every kind but dynamic past its trained length."""
    default = 1.0 / _powers(rope.theta, rope.head_dim)
    if rope.kind == "linear":
        return default / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, default)
    if rope.kind == "yarn":
        return _yarn(rope)
    if rope.kind == "factors":
        if len(rope.factors) != rope.head_dim // 2:
            raise ModelError(f"rope factors: {len(rope.factors)} given, head_dim / 2 is {rope.head_dim // 2}")
        return default / torch.tensor(rope.factors, dtype=torch.float32)
    return default


def _powers(theta: float, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    return torch.pow(theta, exponents)


def _dynamic_frequencies(rope: RopeConfig, num_positions: int) -> torch.Tensor:
    """[positions, head_dim / 2]: NTK-aware scaling (u/bloc97, u/emozilla) with the length up to each
    position.
    """
    rows = torch.empty(num_positions, rope.head_dim // 2, dtype=torch.float32)
    rows[: rope.original_max] = 1.0 / _powers(rope.theta, rope.head_dim)
    exponent = rope.head_dim / (rope.head_dim - 2)
    for position in range(rope.original_max, num_positions):
        ratio = torch.tensor(position + 1) * rope.factor / rope.original_max - (rope.factor - 1)
        base = rope.theta * ratio**exponent
        exponents = torch.arange(0, rope.head_dim, 2, dtype=torch.float32) / rope.head_dim
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
    powers = _powers(rope.theta, rope.head_dim)
    low, high = (_correction(rope, rotations) for rotations in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rope.head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (rope.factor * powers) * (1 - keep) + 1.0 / powers * keep


def _correction(rope: RopeConfig, rotations: float) -> float:
    turns = rope.original_max / (rotations * 2 * math.pi)
    return rope.head_dim * math.log(turns) / (2 * math.log(rope.theta))

"""A34: cos and sin of every rope variant against transformers' rotary module; limits; unknown kinds
refused.
"""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from gpu_worker.errors import ModelError
from gpu_worker.models.rope import cos_sin_table, frequencies, parse, parse_both

HEAD_DIM, TRAINED = 32, 64
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": TRAINED,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": TRAINED},
    "yarn-full": {
        "factor": 8.0,
        "original_max_position_embeddings": TRAINED,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
        "truncate": False,
    },
    "yarn-attention": {"factor": 4.0, "original_max_position_embeddings": TRAINED, "attention_factor": 1.3},
}


def config_of(name: str) -> dict[str, Any]:
    kind = name.split("-")[0]
    max_position = 4 * TRAINED if kind == "llama3" else TRAINED
    config: dict[str, Any] = {
        "max_position_embeddings": max_position,
        "rope_theta": 5000.0,
        "head_dim": HEAD_DIM,
    }
    if kind != "default":
        config["rope_scaling"] = {"rope_type": kind} | SCALINGS[name]
    return config


def reference(config: dict[str, Any], positions: list[int]) -> torch.Tensor:
    """[positions, 2, D / 2] from a fresh rotary module a position, as token-by-token decoding sees it."""
    rows = []
    for position in positions:
        module = LlamaRotaryEmbedding(
            LlamaConfig(hidden_size=4 * HEAD_DIM, num_attention_heads=4, num_key_value_heads=4, **config)
        )
        cos, sin = module(torch.zeros(1, dtype=torch.float32), torch.tensor([[position]]))
        rows.append(torch.stack((cos[0, 0, : HEAD_DIM // 2], sin[0, 0, : HEAD_DIM // 2])))
    return torch.stack(rows)


@pytest.mark.parametrize("name", sorted(SCALINGS))
def test_a34_table_equals_transformers(name: str) -> None:
    config = config_of(name)
    rope = parse(config, HEAD_DIM)
    limit = rope.context_limit
    positions = sorted({0, 1, TRAINED - 1, TRAINED, TRAINED + 1, limit - 1} & set(range(limit)))
    table = cos_sin_table(rope, limit, torch.device("cpu"), torch.float32)
    torch.testing.assert_close(table[positions], reference(config, positions), atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("default", TRAINED),
        ("linear", 4 * TRAINED),
        ("dynamic", 4 * TRAINED),
        ("llama3", 4 * TRAINED),
        ("yarn", 4 * TRAINED),
    ],
)
def test_a34_context_limit_is_the_scaled_one(name: str, limit: int) -> None:
    assert parse(config_of(name), HEAD_DIM).context_limit == limit


@pytest.mark.parametrize("name", sorted(SCALINGS))
def test_a34_every_spelling_reads_the_same(name: str) -> None:
    config = config_of(name)
    wanted = parse(config, HEAD_DIM)
    scaling = dict(config.pop("rope_scaling", {"rope_type": "default"}))
    old = dict(scaling)
    old["type"] = old.pop("rope_type")
    assert parse(config | {"rope_scaling": old}, HEAD_DIM) == wanted
    theta = config.pop("rope_theta")
    assert parse(config | {"rope_parameters": scaling | {"rope_theta": theta}}, HEAD_DIM) == wanted


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "rope_scaling.short_factor: expected a list of 16"),
        ({"type": "spiral"}, "rope_type: 'spiral'"),
        ({"rope_type": "linear"}, "rope_scaling.factor"),
        ({"rope_type": "linear", "factor": -1}, "rope_scaling.factor: -1"),
        ({"rope_type": "llama3", "factor": 8.0}, "rope_scaling.low_freq_factor: is missing"),
        (
            {"rope_type": "yarn", "factor": 8.0, "beta_fast": -1},
            "rope_scaling.beta_fast: -1 is not a positive",
        ),
        ({"rope_type": "yarn", "factor": True}, "rope_scaling.factor: True is not a positive"),
        (
            {"rope_type": "factors", "factors": [1.0] * 15 + [None]},
            "rope_scaling.factors: expected a list of 16",
        ),
        ({"rope_type": "factors", "factors": [1.0] * 15 + [0]}, "rope_scaling.factors: 0 is not a positive"),
        (
            {"rope_type": "default", "partial_rotary_factor": 0.03},
            "partial_rotary_factor: 0.03 of head_dim 32",
        ),
        ("linear", "rope_scaling: 'linear'"),
        ({"full_attention": {"rope_type": "default"}}, "some layers"),
    ],
)
def test_a34_what_is_not_known_is_refused_by_name(scaling: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        parse({"rope_scaling": scaling, "max_position_embeddings": 64}, HEAD_DIM)


@pytest.mark.parametrize(("served", "factor"), [(TRAINED, "short"), (2 * TRAINED, "long")])
def test_a34_longrope_is_chosen_by_the_longest_context_served(served: int, factor: str) -> None:
    """Each set of factors equals transformers' for a sequence of that length."""
    lists = {"short_factor": [1.0 + i / 9 for i in range(12)], "long_factor": [2.0 + i for i in range(12)]}
    config: dict[str, Any] = {
        "max_position_embeddings": 4 * TRAINED,
        "original_max_position_embeddings": TRAINED,
        "partial_rotary_factor": 0.75,
        "rope_theta": 5000.0,
        "rope_scaling": {"type": "longrope", **lists},
    }
    rope = parse(config, HEAD_DIM)
    assert (rope.context_limit, rope.rotary_dim) == (4 * TRAINED, 24)
    table = cos_sin_table(rope, served, torch.device("cpu"), torch.float32)
    hf_config = Phi3Config(hidden_size=4 * HEAD_DIM, num_attention_heads=4, **config)
    cos, sin = Phi3RotaryEmbedding(hf_config)(torch.zeros(1), torch.arange(served)[None])
    torch.testing.assert_close(table, torch.stack((cos[0, :, :12], sin[0, :, :12]), 1), atol=2e-6, rtol=0)


def test_gemma_3_has_a_rope_of_its_own_for_layers_with_a_window() -> None:
    """Both spellings: one global scaling with rope_local_base_freq, or rope_parameters by layer type."""
    base = {"max_position_embeddings": 64, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    linear = {"rope_type": "linear", "factor": 8.0}
    old = parse_both(base | {"rope_scaling": linear}, HEAD_DIM, True)
    kinds = {"full_attention": linear | {"rope_theta": 1e6}, "sliding_attention": {"rope_type": "default"}}
    assert parse_both(base | {"rope_parameters": kinds}, HEAD_DIM, True) == old
    assert (old[0].theta, old[0].factor, old[0].context_limit) == (1e6, 8.0, 512)
    assert old[1] is not None
    assert (old[1].theta, old[1].kind) == (1e4, "default")
    assert parse_both(base, HEAD_DIM, False)[1] is None


def test_factors_divide_the_default_frequencies() -> None:
    """How GGUF files store llama3's scaling."""
    llama3 = parse(config_of("llama3"), HEAD_DIM)
    default = frequencies(parse({"rope_theta": 5000.0}, HEAD_DIM))
    factors = (default / frequencies(llama3)).tolist()
    given = parse(
        {"rope_theta": 5000.0, "rope_scaling": {"rope_type": "factors", "factors": factors}}, HEAD_DIM
    )
    torch.testing.assert_close(frequencies(given), frequencies(llama3))
    with pytest.raises(ModelError, match=r"rope_scaling\.factors: expected a list of 16 numbers"):
        parse({"rope_scaling": {"rope_type": "factors", "factors": [1.0]}}, HEAD_DIM)

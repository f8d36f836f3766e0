"""Real configs at reduced depth, with random weights: they load, take a prompt in chunks, and give tokens.

Owns the list of models and what is cut: depth, and a vocabulary that tells no family from another.
Invariant: every architecture of the registry but those without a config here is served by its real sizes.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.config import read_settings
from gpu_worker.loading import examine, load
from gpu_worker.models.registry import ARCHITECTURES, parse_config
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run

CONFIGS = Path(__file__).parents[2] / "data" / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json") if path.stem != "gpt2")
DEEP = {"gemma-3-1b": 7}
WITHOUT_CONFIG = {"MixtralForCausalLM", "GemmaForCausalLM"}
VOCAB = 2048


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    if name == "phi-4-mini":
        ones = [1.0] * 48
        config["rope_scaling"] = {"type": "longrope", "short_factor": ones, "long_factor": ones}
    return config


def test_every_architecture_has_a_real_config() -> None:
    served = {config_of(name)["architectures"][0] for name in NAMES}
    assert served == set(ARCHITECTURES) - WITHOUT_CONFIG


@pytest.mark.parametrize("name", NAMES)
def test_whole_config_is_understood(name: str) -> None:
    config = parse_config(config_of(name))
    assert len(config.windows) == config.num_layers
    assert config.head_dim * config.num_heads == config.q_size
    assert max(config.eos_token_ids) < config.vocab_size
    assert config.context_limit == config_of(name)["max_position_embeddings"]


@pytest.mark.parametrize(
    ("name", "windows", "scale"),
    [
        ("gemma-2-2b", (4096, 0, 4096), 1 / 16),
        ("gemma-3-1b", (512, 512, 512, 512, 512, 0, 512), 1 / 16),
        ("phi-3-mini-4k", (2047, 2047), 96**-0.5),
        ("phi-4-mini", (0, 0), 128**-0.5),
        ("mistral-7b-v0.3", (0, 0), 128**-0.5),
    ],
)
def test_windows_and_scales(name: str, windows: tuple[int, ...], scale: float) -> None:
    config = parse_config(config_of(name))
    assert config.windows[: len(windows)] == windows
    assert config.attention_scale == pytest.approx(scale)


@pytest.mark.parametrize("name", NAMES)
def test_reduced_depth_with_random_weights_gives_tokens(name: str, tmp_path: Path) -> None:
    config = config_of(name)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCAB}
    (tmp_path / "config.json").write_text(json.dumps(config | ids))
    depth = DEEP.get(name, 2 if config["hidden_size"] < 3000 and "moe" not in str(config) else 1)
    flags = ["--load-format", "dummy", "--num-layers", str(depth), "--num-blocks", "16", "--device", "cpu"]
    flags += [
        "--max-num-batched-tokens",
        "64",
        "--max-num-seqs",
        "4",
        "--dtype",
        "bfloat16",
        "--threads",
        "2",
    ]
    flags += ["--max-model-len", "256"]
    torch.set_num_threads(2)
    loaded = load(examine(read_settings(["--model", str(tmp_path), *flags])))
    crowd = [HandSequence(row, list(range(3, 3 + length))) for row, length in enumerate((1, 20, 37))]
    run(loaded.runner, HandPlanner(16, 16), crowd, 3, chunk=16)
    assert all(0 <= token < VOCAB for sequence in crowd for token in sequence.outputs)
    assert [len(sequence.outputs) for sequence in crowd] == [3, 3, 3]

"""Tiny random models of each family, as transformers writes them: greedy tokens, compiled and on torch."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from gpu_worker.errors import ModelError
from gpu_worker.models.registry import parse_config
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run
from tests.fixtures.tiny_runner import make_runner

torch.set_num_threads(1)
SIZES: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": None, "head_dim": 24},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
}
OUTPUTS = 8


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with every weight drawn, biases and norms too."""
    config = transformers.AutoConfig.for_model(request.param, **SIZES, **FAMILIES[request.param])
    torch.manual_seed(3)
    maker: Any = transformers.AutoModelForCausalLM
    model = maker.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.15)
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("dtype", "backend"), [("float32", "cpu"), ("float32", "torch"), ("float64", "torch")]
)
def test_greedy_tokens_are_those_of_transformers(folder: Path, dtype: str, backend: str) -> None:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager"
    )
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(3, 380, (length,), generator=generator).tolist() for length in (1, 13, 40)]
    expected = []
    for ids in prompts:
        tokens = torch.tensor([ids])
        with torch.inference_mode():
            for _ in range(OUTPUTS):
                last = model(tokens).logits[:, -1].argmax(-1, keepdim=True)
                tokens = torch.cat([tokens, last], dim=1)
        expected.append(tokens[0, len(ids) :].tolist())
    crowd = [HandSequence(row, list(ids)) for row, ids in enumerate(prompts)]
    run(make_runner(folder, dtype, backend=backend), HandPlanner(64, 4), crowd, OUTPUTS, chunk=9)
    assert [sequence.outputs for sequence in crowd] == expected


@pytest.mark.parametrize(("window", "refused"), [(256, True), (512, False), (None, False)])
def test_a_window_shorter_than_the_context_is_refused(window: int | None, refused: bool) -> None:
    config = SIZES | {"architectures": ["MistralForCausalLM"], "sliding_window": window}
    if refused:
        with pytest.raises(ModelError, match="sliding_window: 256"):
            parse_config(config)
    else:
        assert not parse_config(config).qkv_bias


def test_qwen2_has_biases_of_q_k_and_v_alone() -> None:
    config = parse_config(
        SIZES | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 32, "use_sliding_window": False}
    )
    assert (config.qkv_bias, config.out_bias, config.mlp_bias) == (True, False, False)

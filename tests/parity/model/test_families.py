"""Tiny random models of each family, as transformers writes them: greedy tokens, compiled and on torch."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from gpu_worker.models.registry import parse_config
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run
from tests.fixtures.hf_families import FAMILIES, SIZES, write_hf_model
from tests.fixtures.tiny_runner import make_runner

torch.set_num_threads(1)
OUTPUTS = 8


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_model(tmp_path_factory.mktemp("model"), request.param, FAMILIES[request.param])


@pytest.mark.parametrize(
    ("dtype", "backend"), [("float32", "cpu"), ("float32", "torch"), ("float64", "torch")]
)
def test_greedy_tokens_are_those_of_transformers(folder: Path, dtype: str, backend: str) -> None:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager", experts_implementation="eager"
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


@pytest.mark.parametrize(("window", "expected"), [(256, (256, 256)), (512, (0, 0)), (None, (0, 0))])
def test_a_window_as_long_as_the_context_is_none(window: int | None, expected: tuple[int, ...]) -> None:
    config = SIZES | {"architectures": ["MistralForCausalLM"], "sliding_window": window}
    assert parse_config(config).windows == expected


def test_qwen2_has_biases_of_q_k_and_v_alone() -> None:
    config = parse_config(
        SIZES | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 32, "use_sliding_window": False}
    )
    assert (config.qkv_bias, config.out_bias, config.mlp_bias) == (True, False, False)

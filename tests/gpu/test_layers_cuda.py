"""Mixtures of experts, and layers that no fused kernel runs, transformers' own code, on a CUDA device.

Owns the verdicts against transformers on the same device; knows no service. Invariant: float32 without TF32,
and a worker that cannot capture its steps says so at load.
"""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gpu_worker.config import read_settings
from gpu_worker.loading import Loaded, examine, load
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run
from tests.fixtures.hf_families import FAMILIES, OTHERS, write_hf_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
OUTPUTS = 10
BLOCKS = 64


def loaded(folder: Path, *flags: str) -> Loaded:
    sizes = ("--num-blocks", str(BLOCKS), "--max-num-seqs", "8", "--max-num-batched-tokens", "256")
    given = ("--model", str(folder), "--device", "cuda", "--dtype", "float32", "--swap-space", "0")
    return load(examine(read_settings([*given, *sizes, *flags])))


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 380, (n,), generator=generator).tolist() for n in (1, 16, 17, 33, 70)]


def generated(folder: Path) -> list[list[int]]:
    """Greedy tokens of transformers' own generate on the device, each prompt by itself."""
    own: dict[str, Any] = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **own).cuda()
    outputs = []
    for ids in prompts():
        given = torch.tensor([ids], device="cuda")
        ends = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        answer = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=OUTPUTS, **ends)
        outputs.append(answer[0, len(ids) :].tolist())
    return outputs


def served(worker: Loaded, chunk: int) -> list[list[int]]:
    """The same prompts in one crowd, prompts in chunks."""
    crowd = [HandSequence(row, list(ids)) for row, ids in enumerate(prompts())]
    run(worker.runner, HandPlanner(BLOCKS, worker.capacity.block_size), crowd, OUTPUTS, chunk)
    worker.runner.reset()
    return [sequence.outputs for sequence in crowd]


def check(folder: Path, caplog: pytest.LogCaptureFixture, said: str, *flags: str) -> None:
    expected = generated(folder)
    with caplog.at_level(logging.INFO):
        worker = loaded(folder, *flags)
    assert said in caplog.text
    attention = next(choice for choice in worker.capacity.kernels if choice.op == "paged_attention")
    assert attention.backend == "triton"
    assert served(worker, 19) == served(worker, 1000) == expected


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_moe with a dense layer", "mixtral"])
def test_mixtures_of_experts(family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_hf_model(tmp_path, family, FAMILIES[family])
    check(tmp_path, caplog, "CUDA graphs in")


@pytest.mark.parametrize("family", ["gpt2", "opt", "starcoder2"])
def test_models_of_transformers(family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_hf_model(tmp_path, family, OTHERS[family])
    check(tmp_path, caplog, "CUDA graphs in", "--model-impl", "transformers")


@pytest.mark.parametrize("family", ["falcon", "olmoe"])
def test_models_of_transformers_that_no_graph_can_hold(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Falcon copies a tensor from the host in each layer, a mixture asks which experts are needed."""
    write_hf_model(tmp_path, family, OTHERS[family])
    said = "no CUDA graphs: the layers run on transformers"
    check(tmp_path, caplog, said, "--model-impl", "transformers")


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt2"])
def test_bfloat16_is_finite_and_mostly_the_same(family: str, tmp_path: Path) -> None:
    write_hf_model(tmp_path, family, (FAMILIES | OTHERS)[family])
    expected = served(loaded(tmp_path), 19)
    found = served(loaded(tmp_path, "--dtype", "bfloat16"), 19)
    first = [one[0] == other[0] for one, other in zip(found, expected, strict=True)]
    assert min(token for row in found for token in row) >= 0, "a row has failed"
    assert sum(first) >= len(first) - 1


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt2"])
def test_an_8_bit_pool_under_them(family: str, tmp_path: Path) -> None:
    """The tokens of the torch kernels on the same device and pool."""
    write_hf_model(tmp_path, family, (FAMILIES | OTHERS)[family])
    flags = ("--kv-cache-dtype", "fp8_e4m3")
    expected = served(loaded(tmp_path, *flags, "--kernel-backend", "torch"), 19)
    assert served(loaded(tmp_path, *flags), 19) == expected

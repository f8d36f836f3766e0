"""The whole service with its worker on a CUDA device: the equality harness in float32, and generation in
bfloat16.

Owns the verdict there; knows no kernel. Invariant: the reference runs on the CPU.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.e2e.processes import Processes
from tests.e2e.service import request
from tests.harness.plants import TINY_SHAPES, TINY_TOKENS, tiny_plant, tiny_prompts
from tests.harness.reference import from_folder
from tests.harness.report import publish
from tests.harness.service_run import Runner
from tests.harness.settings import covering_settings
from tests.harness.verdict import Verdict

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(900),
]


@pytest.mark.parametrize("family", sorted(TINY_SHAPES))
def test_every_crowded_setting_gives_transformers_tokens(
    family: str, processes: Processes, tmp_path: Path
) -> None:
    plant = replace(tiny_plant(family, tmp_path), device="cuda", dtype="float32")
    reference = from_folder(plant.model, torch.float32)
    prompts, verdict = tiny_prompts(), Verdict(f"tiny {family}, float32, CUDA")
    runner, outcomes = Runner(processes, plant), []
    for setting in [one for one in covering_settings() if one.crowd]:
        outcome = asyncio.run(runner.run(setting, [request(prompt, TINY_TOKENS) for prompt in prompts]))
        verdict.add(setting.name, prompts, outcome.outputs, TINY_TOKENS, reference.logits)
        outcomes.append(outcome)
    publish(verdict, outcomes)
    verdict.check()


def test_bfloat16_generates_and_most_tokens_agree(processes: Processes, tmp_path: Path) -> None:
    """bf16 flips tokens between batch shapes, so only the bulk is compared."""
    plant = replace(tiny_plant("llama", tmp_path), device="cuda", dtype="bfloat16")
    reference, prompts = from_folder(plant.model, torch.float32), tiny_prompts()
    calm = covering_settings()[0]
    messages = [request(prompt, TINY_TOKENS) for prompt in prompts]
    outputs = asyncio.run(Runner(processes, plant).run(calm, messages)).outputs
    agreeing = [
        float((reference.logits(prompt, output).argmax(-1) == output).mean())
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    assert sum(agreeing) / len(agreeing) > 0.85

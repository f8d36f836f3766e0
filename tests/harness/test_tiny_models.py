"""The equality harness on tiny random models of every family in float64: A06, A10, A12, A18, A25."""

import asyncio
from pathlib import Path

import pytest
import torch

from tests.e2e.processes import Processes
from tests.e2e.service import request
from tests.fixtures.hf_families import FAMILIES, OTHERS
from tests.harness.plants import TINY_SHAPES, TINY_TOKENS, family_plant, tiny_plant, tiny_prompts
from tests.harness.reference import from_folder
from tests.harness.report import publish
from tests.harness.service_run import Outcome, Plant, Runner
from tests.harness.settings import Setting, covering_settings
from tests.harness.verdict import Verdict

ROUNDS = 2


HARDEST = [one for one in covering_settings() if one.crowd and one.small_pool]
"""A pool that preempts, with and without the cache; one of the two chunks, the other loses its worker."""
SPECIAL = ("gemma2", "gemma3_text", "mixtral with a window", "olmo2", "phi3", "qwen3_moe")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", sorted(TINY_SHAPES))
def test_every_setting_gives_transformers_tokens(family: str, processes: Processes, tmp_path: Path) -> None:
    """Greedy tokens under eight settings, each prompt sent twice, and transformers' own generate."""
    compare(tiny_plant(family, tmp_path), family, covering_settings(), processes)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", SPECIAL)
def test_families_under_the_hardest_settings(family: str, processes: Processes, tmp_path: Path) -> None:
    """Windows, caps, experts and other norms: the two settings of the eight that preempt in a crowd."""
    compare(family_plant(family, tmp_path / "model"), family, HARDEST, processes)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", ["gpt2", "falcon", "starcoder2"])
def test_models_of_transformers_under_the_hardest_settings(
    family: str, processes: Processes, tmp_path: Path
) -> None:
    """Through the whole service: learned positions, one KV head by fused attention, a window."""
    compare(family_plant(family, tmp_path / "model"), family, HARDEST, processes)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", sorted(FAMILIES | OTHERS))
def test_families_under_every_setting(family: str, processes: Processes, tmp_path: Path) -> None:
    compare(family_plant(family, tmp_path / "model"), family, covering_settings(), processes)


def compare(plant: Plant, family: str, settings: list[Setting], processes: Processes) -> None:
    """The plant's greedy tokens under each setting are transformers'."""
    torch.set_num_threads(1)
    prompts = tiny_prompts()
    reference = from_folder(plant.model, torch.float64)
    verdict, runner = Verdict(f"tiny {family}, float64"), Runner(processes, plant)
    generated = [reference.generate(prompt, TINY_TOKENS) for prompt in prompts]
    verdict.add("transformers generate", prompts, generated, TINY_TOKENS, reference.logits)
    outcomes = []
    for setting in settings:
        messages = [request(prompt, TINY_TOKENS) for prompt in prompts]
        outcome = asyncio.run(runner.run(setting, messages, ROUNDS))
        verdict.add(setting.name, prompts * ROUNDS, outcome.outputs, TINY_TOKENS, reference.logits)
        outcomes.append(outcome)
    publish(verdict, outcomes)
    verdict.check()
    for outcome in outcomes:
        assert_setting_was_real(outcome)


def assert_setting_was_real(outcome: Outcome) -> None:
    """The small pool preempted, the cache was hit or not at all."""
    setting = outcome.setting
    if setting.crowd and setting.small_pool:
        assert outcome.preemptions > 0, setting.name
    assert (outcome.cached > 0) == setting.cache, setting.name


@pytest.mark.timeout(300)
def test_seeded_sampling_is_the_same_under_opposite_settings(processes: Processes, tmp_path: Path) -> None:
    """A18: temperature, top-k and top-p with seeds, alone and in a crowd that is preempted, chunked and
    killed.
    """
    plant, prompts = tiny_plant("qwen3", tmp_path), tiny_prompts()
    messages = [
        request(prompt, TINY_TOKENS, temperature=0.7 + 0.1 * (i % 5), seed=i, top_k=10 * (i % 3))
        for i, prompt in enumerate(prompts)
    ]
    for message in messages[::4]:
        message.sampling.top_p = 0.8
    runner = Runner(processes, plant)
    settings = covering_settings()
    alone = next(one for one in settings if not one.crowd and not one.killed)
    hard = [one for one in settings if one.crowd and one.small_pool]
    expected = asyncio.run(runner.run(alone, messages)).outputs
    assert len({tuple(output) for output in expected}) == len(prompts)
    for setting in hard:
        assert asyncio.run(runner.run(setting, messages)).outputs == expected, setting.name

"""The equality harness on SmolLM2-135M-Instruct in float32 with fifty real prompts."""

import asyncio

import pytest
import torch

from tests.e2e.processes import Processes
from tests.e2e.service import request
from tests.harness.plants import SMOLLM2_TOKENS, smollm2_plant, smollm2_prompts
from tests.harness.reference import Reference, from_gguf_folder
from tests.harness.report import publish
from tests.harness.service_run import Outcome, Runner
from tests.harness.settings import Setting, covering_settings
from tests.harness.test_tiny_models import assert_setting_was_real
from tests.harness.verdict import Verdict

ALONE_PROMPTS = slice(0, 50, 10)
"""One prompt after the other is slow: `make test` sends five of the fifty that way, `make test-long` all."""


@pytest.fixture(scope="module")
def reference() -> Reference:
    torch.set_num_threads(1)
    return from_gguf_folder(smollm2_plant().model)


def run_settings(
    verdict: Verdict, processes: Processes, reference: Reference, settings: list[Setting], alone: slice
) -> list[Outcome]:
    prompts, runner = smollm2_prompts(), Runner(processes, smollm2_plant())
    outcomes = []
    for setting in settings:
        chosen = prompts if setting.crowd else prompts[alone]
        messages = [request(prompt, SMOLLM2_TOKENS) for prompt in chosen]
        outcome = asyncio.run(runner.run(setting, messages))
        verdict.add(setting.name, chosen, outcome.outputs, SMOLLM2_TOKENS, reference.logits)
        outcomes.append(outcome)
        assert_setting_was_real(outcome)
    return outcomes


@pytest.mark.timeout(1200)
def test_fifty_prompts_give_transformers_tokens(processes: Processes, reference: Reference) -> None:
    """A crowd in an ample pool at depth 3, one preempted and chunked at depth 1 with its worker killed,
    and alone.

    By induction over an output, a token that is the reference's choice after the tokens before it makes
    the whole output the reference's own greedy one.
    """
    settings = [
        Setting(
            crowd=True, cache=True, chunked=False, small_pool=False, deep=True, killed=False, swaps=False
        ),
        Setting(
            crowd=False,
            cache=False,
            chunked=True,
            small_pool=False,
            deep=False,
            killed=False,
            swaps=False,
        ),
        Setting(
            crowd=True, cache=False, chunked=True, small_pool=True, deep=False, killed=False, swaps=False
        ),
        Setting(crowd=True, cache=True, chunked=True, small_pool=True, deep=True, killed=True, swaps=True),
    ]
    verdict = Verdict("SmolLM2-135M-Instruct, float32")
    publish(verdict, run_settings(verdict, processes, reference, settings, ALONE_PROMPTS))
    verdict.check()


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_fifty_prompts_under_all_settings_and_by_generate(processes: Processes, reference: Reference) -> None:
    prompts, verdict = smollm2_prompts(), Verdict("SmolLM2-135M-Instruct, float32, all settings")
    outcomes = run_settings(verdict, processes, reference, covering_settings(), slice(0, 50))
    generated = [reference.generate(prompt, SMOLLM2_TOKENS) for prompt in prompts]
    verdict.add("transformers generate", prompts, generated, SMOLLM2_TOKENS, reference.logits)
    publish(verdict, outcomes)
    verdict.check()

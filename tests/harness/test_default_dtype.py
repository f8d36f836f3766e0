"""Tokens do not depend on the setting in the dtype that a CPU worker chooses by itself, whichever that is."""

import asyncio
from dataclasses import replace

import pytest

from tests.e2e.processes import Processes
from tests.e2e.service import request
from tests.harness.plants import smollm2_plant, smollm2_prompts
from tests.harness.service_run import Runner
from tests.harness.settings import Setting

TOKENS = 16
PROMPTS = slice(0, 50, 4)
CROWD = Setting(crowd=True, cache=True, chunked=False, small_pool=False, deep=True, killed=False, swaps=False)
HARD = Setting(crowd=True, cache=False, chunked=True, small_pool=True, deep=False, killed=True, swaps=False)
ALONE = Setting(
    crowd=False, cache=False, chunked=False, small_pool=False, deep=True, killed=False, swaps=False
)


@pytest.mark.timeout(900)
def test_calm_chunked_killed_and_lonely_runs_agree(processes: Processes) -> None:
    """A kill -9 must not change a client's tokens with default flags; no reference, for bfloat16 has none."""
    prompts = smollm2_prompts()[PROMPTS]
    runner = Runner(processes, replace(smollm2_plant(), dtype="auto", small_blocks=24))

    def outputs(setting: Setting, count: int) -> list[list[int]]:
        messages = [request(prompt, TOKENS) for prompt in prompts[:count]]
        return asyncio.run(runner.run(setting, messages)).outputs

    calm = outputs(CROWD, len(prompts))
    assert all(len(output) == TOKENS for output in calm)
    assert outputs(HARD, len(prompts)) == calm
    assert outputs(ALONE, 4) == calm[:4]

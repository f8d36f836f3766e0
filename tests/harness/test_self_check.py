"""The harness must see a wrong token: one corrupted slot in the whole run fails it."""

import asyncio
from pathlib import Path

import pytest
import torch

from tests.e2e.processes import Processes
from tests.e2e.service import request
from tests.harness.plants import TINY_TOKENS, tiny_plant, tiny_prompts
from tests.harness.reference import from_folder
from tests.harness.service_run import Runner
from tests.harness.settings import Setting
from tests.harness.verdict import Verdict

CALM = Setting(crowd=True, cache=False, chunked=False, small_pool=False, deep=True, killed=False, swaps=False)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("corrupt", [False, True])
def test_one_corrupted_slot_fails_the_harness(processes: Processes, tmp_path: Path, corrupt: bool) -> None:
    torch.set_num_threads(1)
    plant, prompts = tiny_plant("llama", tmp_path), tiny_prompts()
    runner = Runner(processes, plant, "tests.harness.corrupting_worker" if corrupt else "gpu_worker")
    outcome = asyncio.run(runner.run(CALM, [request(prompt, TINY_TOKENS) for prompt in prompts]))
    verdict = Verdict("self-test")
    logits = from_folder(plant.model, torch.float64).logits
    verdict.add(CALM.name, prompts, outcome.outputs, TINY_TOKENS, logits)
    if not corrupt:
        verdict.check()
        return
    with pytest.raises(AssertionError, match="tokens differ"):
        verdict.check()
    assert {difference.prompt for difference in verdict.errors} < set(range(len(prompts)))

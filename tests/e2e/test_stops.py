"""A19: end-of-sequence ids, stop ids and limits, with scripted tokens from a fake worker."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler
from tests.fixtures.tiny_model import EOS_TOKEN_IDS

FOLDER_EOS, TOKENIZER_EOS = EOS_TOKEN_IDS
WORKER_EOS = 50


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama)


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat, replace(SMALL, eos_token_ids=(WORKER_EOS, FOLDER_EOS))) as made:
        yield made


CASES: dict[str, tuple[list[int], dict[str, Any], int, str, int | None]] = {
    # script, options, tokens that come back, reason, matched stop id
    "an id of the worker's": ([10, WORKER_EOS, 11], {"ignore_eos": False}, 2, "STOP", WORKER_EOS),
    "an id of generation_config": ([10, FOLDER_EOS, 11], {"ignore_eos": False}, 2, "STOP", FOLDER_EOS),
    "an id of the tokenizer's": ([10, TOKENIZER_EOS, 11], {"ignore_eos": False}, 2, "STOP", TOKENIZER_EOS),
    "ignore_eos goes past all of them": ([WORKER_EOS, FOLDER_EOS, TOKENIZER_EOS, 10], {}, 4, "LENGTH", None),
    "a user's stop id": ([10, 11, 12], {"stop_token_ids": [11]}, 2, "STOP", 11),
    "a user's stop id that is an EOS id too": ([10, WORKER_EOS], {"stop_token_ids": [WORKER_EOS]}, 2, "STOP",
                                               WORKER_EOS),
    "the first of two": ([10, 11, 12], {"stop_token_ids": [12, 11]}, 2, "STOP", 11),
    "max_tokens 1": ([10, 11], {"max_tokens": 1}, 1, "LENGTH", None),
    "stop wins over length in one step": ([10, 11, 12, 13], {"stop_token_ids": [13]}, 4, "STOP", 13),
    "stop wins with max_tokens 1": ([10], {"max_tokens": 1, "stop_token_ids": [10]}, 1, "STOP", 10),
    "min_tokens come before a stop id": ([11, 11, 11, 12], {"stop_token_ids": [11], "min_tokens": 2},
                                         3, "STOP", 11),
    "min_tokens come before EOS": ([WORKER_EOS, 10, WORKER_EOS], {"ignore_eos": False, "min_tokens": 2},
                                  3, "STOP", WORKER_EOS),
    "a stop id on the first token": ([11], {"stop_token_ids": [11]}, 1, "STOP", 11),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_a19_a_sequence_ends_where_it_should(rig: Rig, name: str) -> None:
    script, options, count, reason, matched = CASES[name]
    prompt = prompt_of(6, seed=len(name))
    rig.fake.script(prompt, script)
    reply = await rig.service.generate(prompt, **{"max_tokens": 4} | options)
    assert (reply.tokens, reply.reason, reply.stop_token_id) == (script[:count], reason, matched)
    assert reply.completion_tokens == count
    await rig.service.wait_idle()

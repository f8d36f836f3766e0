"""Constrained output under trouble: several sequences, preemption, a killed worker (A14, A25, A30)."""

import asyncio
import json
from dataclasses import fields
from pathlib import Path

import jsonschema_rs
import pytest

from octavo.v1 import inference_pb2 as pb
from scheduler_svc.text import load_text_model
from tests.e2e.processes import Processes
from tests.e2e.rig import prompt_of
from tests.e2e.service import request
from tests.fixtures.schemas import draw_schema
from tests.harness.service_run import Plant, Runner
from tests.harness.settings import Setting, covering_settings

SCHEMAS = range(12)
N = 3
LENGTH = 300
CALM = Setting(*(False for _ in fields(Setting)))
HARD = [one for one in covering_settings() if one.crowd and one.small_pool]


def asking() -> list[pb.GenerateRequest]:
    messages = []
    for number in SCHEMAS:
        message = request(prompt_of(20, 600 + number), LENGTH, temperature=1.0, seed=number, ignore_eos=False)
        message.response_format.json_schema = json.dumps(draw_schema(number))
        message.n = N
        messages.append(message)
    return messages


@pytest.mark.timeout(600)
def test_json_parses_and_is_the_same_preempted_and_after_a_killed_worker(
    processes: Processes, tiny_llama: Path
) -> None:
    """Every answer fits its schema and equals that of a calm service, where nothing is rebuilt."""
    plant = Plant(tiny_llama, "float64", block_size=8, ample_blocks=400, small_blocks=N * 41, chunk=16)
    runner, text = Runner(processes, plant, kill_after=60 * N), load_text_model(plant.model)
    wanted = asyncio.run(runner.run(CALM, asking())).replies
    for setting in HARD:
        outcome = asyncio.run(runner.run(setting, asking()))
        assert outcome.preemptions > 0, setting.name
        for number, reply, calm in zip(SCHEMAS, outcome.replies, wanted, strict=True):
            assert reply.branches == calm.branches, (setting.name, number)
            assert {reason for reason, _ in reply.ends.values()} == {"STOP"}
            fits = jsonschema_rs.validator_for(draw_schema(number))
            for branch in range(N):
                fits.validate(json.loads(text.decode(reply.branches[branch][:-1])))
    assert {setting.killed for setting in HARD} == {True, False}
    text.close()

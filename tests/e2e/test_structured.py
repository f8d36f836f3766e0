"""Constrained output from a real scheduler and worker: every answer fits, and a bad grammar costs nothing."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import jsonschema_rs
import pytest

from octavo.v1 import inference_pb2 as pb
from scheduler_svc.text import TextModel, load_text_model
from tests.e2e.metrics import scrape
from tests.e2e.processes import Processes, ServiceProcess
from tests.e2e.rig import prompt_of, until
from tests.e2e.service import Reply, Service, request
from tests.fixtures.schemas import draw_schema

SCHEMAS = 200
LENGTH = 500


@pytest.fixture(scope="module")
def worker(tiny_llama: Path, shared_processes: Processes) -> ServiceProcess:
    """In float64, where rounding, which is the machine's, picks no token."""
    flags = ("--dtype", "float64", "--num-blocks", "400", "--block-size", "8")
    return shared_processes.worker(tiny_llama, "127.0.0.1:0", *flags)


@pytest.fixture(scope="module")
def address(tiny_llama: Path, shared_processes: Processes, worker: ServiceProcess) -> Iterator[str]:
    process = shared_processes.scheduler(tiny_llama, worker.address)
    yield process.address
    process.stop()


@pytest.fixture(scope="module")
def text(tiny_llama: Path) -> TextModel:
    return load_text_model(tiny_llama)


def constrained(number: int, kind: str, grammar: str) -> pb.GenerateRequest:
    """A request of its own temperature, seed and prompt, under a grammar."""
    message = request(
        prompt_of(4 + number % 20, 700 + number), LENGTH, temperature=0.5 * (number % 4), seed=number,
        ignore_eos=False,
    )  # fmt: skip
    setattr(message.response_format, kind, grammar)
    return message


def written(text: TextModel, reply: Reply) -> str:
    """The answer's text; it has to have ended by itself."""
    assert reply.reason == "STOP", (reply.reason, reply.error_reason, reply.text)
    assert reply.stop_token_id == reply.tokens[-1]
    return text.decode(reply.tokens[:-1])


async def test_every_answer_of_200_schemas_parses_and_fits(address: str, text: TextModel) -> None:
    schemas = [draw_schema(seed) for seed in range(SCHEMAS)]
    async with Service(address) as service:
        await service.wait_ready()
        replies = await service.run_all(
            [constrained(n, "json_schema", json.dumps(schema)) for n, schema in enumerate(schemas)]
        )
    for schema, reply in zip(schemas, replies, strict=True):
        said = json.loads(written(text, reply))
        jsonschema_rs.validator_for(schema).validate(said)
    assert len({reply.text for reply in replies}) > SCHEMAS // 2


REGEX = "(north|south)-[0-9]{2,4}"
GRAMMARS = {
    "regex": REGEX,
    "ebnf": 'root ::= side "-" digit digit digit? digit?\nside ::= "north" | "south"\ndigit ::= [0-9]',
}


@pytest.mark.parametrize("kind", GRAMMARS)
async def test_regex_and_ebnf_hold(address: str, text: TextModel, kind: str) -> None:
    async with Service(address) as service:
        await service.wait_ready()
        messages = [constrained(number, kind, GRAMMARS[kind]) for number in range(12)]
        lark = constrained(12, "ebnf", 'start: ("north" | "south") "-" /[0-9]{2,4}/')
        for reply in await service.run_all([*messages, lark]):
            assert re.fullmatch(REGEX, written(text, reply))


BAD = {
    "json_schema": [
        '{"type": "nope"}', "{", "[]", "3", '{"$ref": "#/missing"}', '{"$ref": "http://127.0.0.1:9/x"}',
        '{"type": "array", "uniqueItems": true}', '{"type": "string", "pattern": "("}', "[" * 5000,
        '{"type": "object", "properties": ' + '{"a": {"properties": ' * 1500,
    ],
    "regex": ["(", "(?<=x)a", "[z-a]", "a{2,1}"],
    "ebnf": ["", "start: missing", 'root ::= "a" other', "start: /(/", "::="],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "grammar"), [(kind, bad) for kind, some in BAD.items() for bad in some])
async def test_an_invalid_grammar_is_refused_by_name_and_nothing_else_happens(
    address: str, kind: str, grammar: str
) -> None:
    async with Service(address) as service:
        await service.wait_ready()
        beside = asyncio.create_task(service.generate(prompt_of(9, 800), 30))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.run(constrained(1, kind, grammar))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(refused.value.details()).startswith(f"response_format.{kind}: ")
        assert len(str(refused.value.details())) < 300
        assert (await beside).reason == "LENGTH"
        assert (await service.wait_idle()).active_blocks == 0


async def test_min_tokens_beside_a_grammar_is_refused(address: str) -> None:
    message = constrained(1, "regex", REGEX)
    message.stopping.min_tokens = 3
    async with Service(address) as service:
        await service.wait_ready()
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"stopping\.min_tokens: 3 beside response_format\.regex"
        ):
            await service.run(message)


AMBIGUOUS = 'start: s\ns: s s s | s s | "a"'
"""Passes the check's steps; each of its own takes more work than the one before."""


async def test_a21_a_grammar_that_runs_out_of_work_in_a_step_fails_alone_and_says_so(
    address: str, text: TextModel, worker: ServiceProcess
) -> None:
    message = constrained(0, "ebnf", AMBIGUOUS)
    for token in text.eos_token_ids:
        message.sampling.logit_bias[token] = -100
    async with Service(address) as service:
        await service.wait_ready()
        calm = await service.generate(prompt_of(9, 801), 30)
        beside = asyncio.create_task(service.generate(prompt_of(9, 801), 30))
        reply = await service.run(message)
        assert (reply.reason, reply.error_reason) == ("ERROR", "GRAMMAR_FAILED")
        assert 1 < len(reply.tokens) < LENGTH, "what was sent before stays"
        assert (await beside).tokens == calm.tokens
        await service.wait_idle()
    url = f"http://127.0.0.1:{worker.serving['metrics_port']}/metrics"
    failed = 'octavo_worker_failed_rows_total{reason="grammar_failed"}'
    await until(lambda: scrape(url)[failed] >= 1)  # a step is counted once its answer has left
    metrics = scrape(url)
    assert metrics['octavo_worker_failed_rows_total{reason="non_finite_logits"}'] == 0

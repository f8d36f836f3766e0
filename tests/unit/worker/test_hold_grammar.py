"""HoldGrammar: compiled beside the steps, kept while the call is open, refused by name."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from llguidance import LLMatcher

from gpu_worker.grammars import HELD_CHARACTERS, GrammarCompiler
from octavo.errors import reason_of
from octavo.worker.v1 import worker_pb2
from tests.e2e.rig import until
from tests.fixtures.hand_plans import HandPlanner, HandSequence, to_message
from tests.unit.worker.live_worker import EPOCH, LiveWorker, live_worker

DIGITS = LLMatcher.grammar_from_regex("[0-9]{3}")


class GatedCompiler(GrammarCompiler):
    """Compiles only while the gate is open. compiled: what it has compiled."""

    def __init__(self, folder: Path) -> None:
        self.gate = threading.Event()
        self.compiled: list[str] = []
        super().__init__(folder / "tokenizer.json", 384, [2])

    def _compile(self, grammar: str) -> LLMatcher:
        self.gate.wait()
        self.compiled.append(grammar)
        return super()._compile(grammar)


@pytest.fixture
def compiler(tiny_llama: Path) -> Iterator[GatedCompiler]:
    made = GatedCompiler(tiny_llama)
    yield made
    made.gate.set()  # a thread that waited on would keep the process


def hold(worker: LiveWorker, grammar: str) -> Any:
    return worker.stub.HoldGrammar(worker_pb2.HoldGrammarRequest(grammar=grammar))


async def test_steps_of_others_go_on_while_a_grammar_is_compiled(
    tiny_llama: Path, compiler: GatedCompiler
) -> None:
    async with live_worker(tiny_llama, grammars=compiler) as worker:
        call = hold(worker, DIGITS)
        answer = asyncio.create_task(call.read())
        end = await worker.session(1)
        planner, sequence = HandPlanner(64, 4), HandSequence(0, [5, 6, 7])
        for count in (3, *[1] * 20):
            result = await end.ask(to_message(planner.plan([(sequence, count)]), 1, EPOCH))
            assert not result.HasField("failure")
        assert not answer.done()
        assert not compiler.compiled
        compiler.gate.set()
        assert (await answer).error == ""
        assert compiler.compiled == [DIGITS]
        call.cancel()


async def test_a_grammar_is_kept_while_a_call_is_open_and_compiled_once(
    tiny_llama: Path, compiler: GatedCompiler
) -> None:
    compiler.gate.set()
    async with live_worker(tiny_llama, grammars=compiler) as worker:
        calls = [hold(worker, DIGITS) for _ in range(3)]
        assert [(await call.read()).error for call in calls] == [""] * 3
        assert compiler.compiled == [DIGITS]
        for call in calls:
            call.cancel()
        await until(lambda: not compiler._holders)


async def test_a_grammar_that_cannot_be_followed_is_named(tiny_llama: Path, compiler: GatedCompiler) -> None:
    compiler.gate.set()
    async with live_worker(tiny_llama, grammars=compiler) as worker:
        assert "rule_name" in (await hold(worker, "no grammar {").read()).error


async def test_a_worker_without_a_tokenizer_refuses_every_grammar(tiny_llama: Path) -> None:
    async with live_worker(tiny_llama) as bare:
        assert "no tokenizer" in await no_grammars(bare)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "eos_token_id 900, 901: must be below 384, the number of tokenizer.json's ids"),
        ("{}", "tokenizer.json cannot be used: "),
        ("", "tokenizer.json cannot be used: "),
    ],
)
async def test_a_tokenizer_that_cannot_be_used_is_one_line_and_the_reason_of_every_refusal(
    tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None, why: str
) -> None:
    file = tiny_llama / "tokenizer.json"
    if content is not None:
        file = tmp_path / "tokenizer.json"
        file.write_text(content)
    compiler = GrammarCompiler(file, 384, [900, 901])
    compiler.wait()
    said = of_grammars(caplog)
    assert [record.exc_info for record in said] == [None]
    assert said[0].getMessage().startswith("no grammar can be followed: ")
    assert why in said[0].getMessage()
    assert len(said[0].getMessage().splitlines()) == 1
    async with live_worker(tiny_llama, grammars=compiler) as worker:
        assert why in await no_grammars(worker)
        await until(lambda: not compiler._holders)


def of_grammars(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was logged of grammars: whatever else runs in this process may log too."""
    return [record for record in caplog.records if record.name == "gpu_worker.grammars"]


async def no_grammars(worker: LiveWorker) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await hold(worker, DIGITS).read()
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason_of(refused.value) == "NO_GRAMMARS"
    return str(refused.value.details())


async def test_an_end_that_the_tokenizer_lacks_is_left_out_where_it_has_another(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = GrammarCompiler(tiny_llama / "tokenizer.json", 1024, [2, 900])
    compiler.wait()
    assert not of_grammars(caplog)
    assert compiler.width == 1024 // 32
    assert not compiler.start(DIGITS).result().is_error()


async def test_a_grammar_whose_first_step_cannot_be_taken_is_named(
    tiny_llama: Path, compiler: GatedCompiler
) -> None:
    """With the model's own tokens, which may reach further than a check by bytes."""
    schema = '{"type": "object", "properties": {"child": {"$ref": "#"}}, "required": ["child"]}'
    endless = LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": False})  # type: ignore[arg-type]
    nothing = LLMatcher.grammar_from_lark("start: start")
    compiler.gate.set()
    async with live_worker(tiny_llama, grammars=compiler) as worker:
        assert "Too many items" in (await hold(worker, endless).read()).error
        assert "NoExtension" in (await hold(worker, nothing).read()).error
        assert (await hold(worker, DIGITS).read()).error == ""


async def test_more_than_may_be_held_is_refused_until_some_is_released(
    tiny_llama: Path, compiler: GatedCompiler
) -> None:
    async with live_worker(tiny_llama, grammars=compiler, limit=2 * HELD_CHARACTERS) as worker:
        first = hold(worker, "{" * HELD_CHARACTERS)
        reading = asyncio.create_task(first.read())
        await until(lambda: bool(compiler._holders))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await hold(worker, DIGITS).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason_of(refused.value) == "GRAMMAR_BACKLOG"
        compiler.gate.set()
        assert (await reading).error
        first.cancel()

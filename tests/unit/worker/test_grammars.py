"""Rows under a grammar: what they write matches it, in flight, set up again, beside any neighbours."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer
from torch import Tensor

from gpu_worker.grammars import HELD_CHARACTERS, GrammarCompiler
from gpu_worker.model_runner import ModelRunner
from gpu_worker.wire import Sampling
from octavo.errors import ResourceExhausted
from tests.fixtures.hand_plans import GREEDY, HandPlanner, HandSequence, run, take
from tests.fixtures.tiny_model import TinyShape, write_tiny_model, write_tokenizer
from tests.fixtures.tiny_runner import change_logits, make_runner

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "maximum": 99, "minimum": 0},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
JSON = LLMatcher.grammar_from_json_schema(SCHEMA, defaults={"whitespace_flexible": False})  # type: ignore[arg-type]
DIGITS = LLMatcher.grammar_from_regex("[0-9]{3,6}-[a-f]{2}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), TinyShape("llama", seed=21))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture
def runner(folder: Path) -> ModelRunner:
    return make_runner(folder, num_blocks=256)


def under(grammar: str, temperature: float = 0.0, seed: int = 0, **fields: object) -> Sampling:
    return Sampling(temperature, 1.0, 0, 0.0, seed, grammar=grammar, **fields)  # type: ignore[arg-type]


def crowd() -> list[HandSequence]:
    samplings = [
        GREEDY,
        under(DIGITS),
        under(JSON, 1.0, 5),
        Sampling(1.0, 0.9, 20, 0.0, 3),
        under(JSON, 0.8, 6, frequency_penalty=1.0),
        under(DIGITS, 1.0, 7),
    ]
    return [
        HandSequence(row, [10 + row, 40, 50, 60 + row], sampling) for row, sampling in enumerate(samplings)
    ]


def ended(runner: ModelRunner, sequence: HandSequence) -> list[int]:
    """Its output up to the first EOS id, which has to be there."""
    places = [at for at, token in enumerate(sequence.outputs) if token in eos_ids(runner)]
    assert places, sequence.outputs
    return sequence.outputs[: places[0]]


def eos_ids(runner: ModelRunner) -> tuple[int, ...]:
    return runner.decoder.config.eos_token_ids


def check(runner: ModelRunner, tokenizer: Tokenizer, rows: Sequence[HandSequence]) -> None:
    for row in (1, 5):
        text = tokenizer.decode(ended(runner, rows[row]), skip_special_tokens=False)
        assert re.fullmatch("[0-9]{3,6}-[a-f]{2}", text), text
    for row in (2, 4):
        said = json.loads(tokenizer.decode(ended(runner, rows[row]), skip_special_tokens=False))
        assert set(said) == {"name", "age"}
        assert len(said["name"]) <= 4


LENGTH = 60


def test_what_rows_write_matches_and_neighbours_write_what_they_would(
    runner: ModelRunner, tokenizer: Tokenizer
) -> None:
    rows = crowd()
    run(runner, HandPlanner(256, 4), rows, LENGTH)
    check(runner, tokenizer, rows)
    for row in range(len(rows)):
        runner.reset()
        alone = crowd()[row]
        run(runner, HandPlanner(256, 4, seed=row), [alone], LENGTH)
        assert alone.outputs == rows[row].outputs
    assert set(rows[1].outputs[-10:]) <= set(eos_ids(runner)), "after its end a text holds nothing but EOS"


def test_rows_set_up_again_go_on_from_their_tokens(runner: ModelRunner, tokenizer: Tokenizer) -> None:
    """As after a preemption or at another worker: the matcher takes the output in again."""
    whole = crowd()
    run(runner, HandPlanner(256, 4), whole, LENGTH)
    runner.reset()
    rows = crowd()
    for outputs in (1, 4, 9, LENGTH):
        planner = HandPlanner(256, 4, seed=outputs)
        for sequence in rows:
            sequence.table, sequence.computed, sequence.is_set_up = [], 0, False
        run(runner, planner, rows, outputs, chunk=3)
        runner.reset()
    assert [sequence.outputs for sequence in rows] == [sequence.outputs for sequence in whole]


def test_two_steps_in_flight_give_the_same_tokens(runner: ModelRunner) -> None:
    whole = crowd()
    run(runner, HandPlanner(256, 4), whole, 30)
    runner.reset()
    planner, rows = HandPlanner(256, 4, seed=4), crowd()
    plan = planner.plan([(sequence, len(sequence.tokens)) for sequence in rows])
    waiting = [(plan, runner.launch(plan))]
    for _ in range(29):
        for sequence in rows:
            sequence.tokens.append(-1)
        plan = planner.plan([(s, 1) for s in rows], input_ids=np.full(len(rows), -1, np.int32))
        for sequence in rows:
            sequence.tokens.pop()
        waiting.append((plan, runner.launch(plan)))
        done, pending = waiting.pop(0)
        take(rows, done, pending.wait())
    for done, pending in waiting:
        take(rows, done, pending.wait())
    assert [sequence.outputs for sequence in rows] == [sequence.outputs for sequence in whole]


def test_a_row_used_again_forgets_the_grammar_that_it_had(runner: ModelRunner) -> None:
    planner = HandPlanner(64, 4)
    first = HandSequence(0, [10, 40, 50], under(DIGITS))
    run(runner, planner, [first], 3)
    planner.release(first)
    second = HandSequence(0, [10, 40, 50])
    run(runner, planner, [second], 6)
    runner.reset()
    fresh = HandSequence(0, [10, 40, 50])
    run(runner, HandPlanner(64, 4), [fresh], 6)
    assert second.outputs == fresh.outputs


@pytest.mark.parametrize(
    "grammar",
    [
        "no grammar at all {",
        LLMatcher.grammar_from_regex("(?<=x)a"),
        LLMatcher.grammar_from_lark('start: "a" missing'),
        LLMatcher.grammar_from_lark("start: /[^\\x00-\\U0010FFFF]/"),
    ],
)
def test_a21_a_row_whose_grammar_cannot_be_followed_fails_alone(runner: ModelRunner, grammar: str) -> None:
    rows = [HandSequence(0, [3, 4, 5]), HandSequence(1, [3, 4, 5], under(grammar)), HandSequence(2, [6, 7])]
    outcome = runner.launch(HandPlanner(64, 4).plan([(row, len(row.tokens)) for row in rows])).wait()
    assert outcome.failed_rows == (1,)
    assert outcome.barred_rows == {1}
    assert outcome.token_ids[0] >= 0
    assert outcome.token_ids[2] >= 0


@pytest.mark.parametrize("tokens", [slice(17, 18), slice(None)])
def test_a21_non_finite_logits_under_a_grammar_fail_as_that_with_a_step_in_flight(
    runner: ModelRunner, tokens: slice
) -> None:
    """Also those of a token that the grammar does not allow."""

    def poison(logits: Tensor) -> Tensor:
        logits[1, tokens] = float("nan")
        return logits

    change_logits(runner, poison)
    rows = [HandSequence(0, [3, 4, 5]), HandSequence(1, [3, 4, 5], under(DIGITS))]
    planner = HandPlanner(64, 4)
    pending = [runner.launch(planner.plan([(row, len(row.tokens)) for row in rows]))]
    for row in rows:
        row.tokens.append(-1)
    pending.append(
        runner.launch(planner.plan([(row, 1) for row in rows], input_ids=np.full(2, -1, np.int32)))
    )
    for step in pending:
        outcome = step.wait()
        assert outcome.failed_rows == (1,)
        assert outcome.barred_rows == set()
        assert outcome.token_ids[0] >= 0


AMBIGUOUS = LLMatcher.grammar_from_lark("start: s\ns: " + " | ".join("s " * i + '"a"' for i in range(24)))


def test_a_grammar_that_runs_out_of_work_in_a_step_fails_its_row_with_a_reason_of_its_own(
    runner: ModelRunner, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [HandSequence(0, [3, 4, 5]), HandSequence(1, [3, 4, 5], under(AMBIGUOUS, bias_ids=eos_ids(runner),
            bias_values=tuple(-100.0 for _ in eos_ids(runner))))]  # fmt: skip
    planner, work = HandPlanner(64, 4), [(row, len(row.tokens)) for row in rows]
    while True:
        plan = planner.plan(work)
        outcome = runner.launch(plan).wait()
        if outcome.failed_rows:
            break
        take(rows, plan, outcome)
        work = [(row, 1) for row in rows]
    assert (outcome.failed_rows, outcome.barred_rows) == ((1,), {1})
    assert len(rows[1].outputs) > 1, "it runs out only after some tokens"
    assert outcome.token_ids[0] >= 0
    for row in rows:
        row.tokens.append(20)
    runner.launch(planner.plan(work)).wait()  # a step that was in flight already
    said = [record.message for record in caplog.records if "cannot go on" in record.message]
    assert len(said) == 1, said
    assert "Too many items" in said[0]


def test_a_held_grammar_is_compiled_once_and_kept_while_others_come_and_go(folder: Path) -> None:
    compiler = GrammarCompiler(folder / "tokenizer.json", 384, [2])
    held = compiler.hold(DIGITS)
    assert compiler.hold(DIGITS) is held
    for number in range(100):
        compiler.start(LLMatcher.grammar_from_regex(f"[0-9]{{{number + 1}}}"))
    compiler.release(DIGITS)
    assert compiler.start(DIGITS) is held
    compiler.release(DIGITS)
    for number in range(100):
        compiler.start(LLMatcher.grammar_from_regex(f"[a-f]{{{number + 1}}}"))
    assert compiler.start(DIGITS) is not held, "nobody holds it, so that it was forgotten"


def test_what_is_held_is_bounded_and_one_grammar_alone_always_held(folder: Path) -> None:
    compiler = GrammarCompiler(folder / "tokenizer.json", 384, [2])
    long = "{" * (HELD_CHARACTERS + 1)  # no grammar at all: what it takes does not matter here
    compiler.hold(long)
    compiler.hold(long)
    with pytest.raises(ResourceExhausted, match=f"limit {HELD_CHARACTERS}") as refused:
        compiler.hold(DIGITS)
    assert (refused.value.reason, refused.value.retry_after) == ("GRAMMAR_BACKLOG", 1.0)
    compiler.release(long)
    compiler.release(long)
    assert not compiler.hold(DIGITS).exception()


def test_a_history_that_does_not_match_fails_its_row(runner: ModelRunner) -> None:
    broken = HandSequence(1, [3, 4, 5], under(DIGITS))
    broken.tokens += [300]
    rows = [HandSequence(0, [3, 4, 5]), broken]
    outcome = runner.launch(HandPlanner(64, 4).plan([(row, len(row.tokens)) for row in rows])).wait()
    assert outcome.failed_rows == (1,)


@pytest.mark.parametrize("vocab_size", [320, 384, 385, 500])
def test_a_tokenizer_may_have_more_or_fewer_ids_than_the_model(tmp_path: Path, vocab_size: int) -> None:
    folder = write_tiny_model(tmp_path / "model", TinyShape("llama", seed=21, vocab_size=vocab_size))
    write_tokenizer(folder, 384)
    runner = make_runner(folder)
    row = HandSequence(0, [3, 4, 5], under(DIGITS))
    run(runner, HandPlanner(64, 4), [row], 14)
    text = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(ended(runner, row))
    assert re.fullmatch("[0-9]{3,6}-[a-f]{2}", text), text


def test_a_worker_without_a_tokenizer_fails_the_row(folder: Path) -> None:
    runner = make_runner(folder)
    bare = ModelRunner(runner.device, runner.decoder, runner.pool, runner.kernels, runner.rows.limits)
    rows = [HandSequence(0, [3, 4, 5]), HandSequence(1, [3, 4, 5], under(DIGITS))]
    outcome = bare.launch(HandPlanner(64, 4).plan([(row, 3) for row in rows])).wait()
    assert outcome.failed_rows == (1,)

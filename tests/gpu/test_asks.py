"""Penalties, bias, log-probabilities and grammars on a CUDA device: as on the CPU, in graphs and without.

Owns the comparison; knows no service. Invariant: every runner gets the same plans, in float32.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from gpu_worker.model_runner import ModelRunner
from gpu_worker.wire import Sampling
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run, take
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import make_runner
from tests.unit.worker import test_adjustments, test_grammars

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
Crowd = Callable[[], list[HandSequence]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), TinyShape("llama", seed=21))


def runner(folder: Path, on: str, graphs: bool = False) -> ModelRunner:
    made = make_runner(folder, num_blocks=256, on=on)
    if graphs:
        made.capture_graphs()
    return made


def in_flight(made: ModelRunner, crowd: Crowd, steps: int) -> list[HandSequence]:
    """The crowd after so many steps, two of them in flight."""
    planner, rows = HandPlanner(256, 4, seed=4), crowd()
    plan = planner.plan([(sequence, len(sequence.tokens)) for sequence in rows])
    waiting = [(plan, made.launch(plan))]
    for _ in range(steps - 1):
        for sequence in rows:
            sequence.tokens.append(-1)
        plan = planner.plan([(s, 1) for s in rows], input_ids=np.full(len(rows), -1, np.int32))
        for sequence in rows:
            sequence.tokens.pop()
        waiting.append((plan, made.launch(plan)))
        done, pending = waiting.pop(0)
        take(rows, done, pending.wait())
    for done, pending in waiting:
        take(rows, done, pending.wait())
    return rows


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("crowd", [test_adjustments.crowd, test_grammars.crowd])
def test_the_tokens_are_those_of_the_cpu(folder: Path, crowd: Crowd, graphs: bool) -> None:
    expected = crowd()
    run(runner(folder, "cpu"), HandPlanner(256, 4), expected, 40)
    made = runner(folder, "cuda", graphs)
    rows = crowd()
    run(made, HandPlanner(256, 4), rows, 40, chunk=5)
    assert min(token for row in expected for token in row.outputs) >= 0, "a row has failed"
    assert [row.outputs for row in rows] == [row.outputs for row in expected]
    made.reset()
    assert [row.outputs for row in in_flight(made, crowd, 40)] == [row.outputs for row in expected]


def test_answers_under_a_grammar_hold(folder: Path) -> None:
    made = runner(folder, "cuda", graphs=True)
    rows = in_flight(made, test_grammars.crowd, 60)
    test_grammars.check(made, Tokenizer.from_file(str(folder / "tokenizer.json")), rows)


def test_a21_a_row_whose_grammar_allows_nothing_fails_alone_behind_a_graph(folder: Path) -> None:
    """At once, and after some tokens; its neighbours' tokens are those of the CPU."""
    told = []
    for made in (runner(folder, "cpu"), runner(folder, "cuda", graphs=True)):
        planner, ends = HandPlanner(256, 4), test_grammars.eos_ids(made)
        never = test_grammars.under("no grammar at all {")
        later = test_grammars.under(
            test_grammars.AMBIGUOUS, bias_ids=ends, bias_values=tuple(-100.0 for _ in ends)
        )
        rows = [HandSequence(0, [3, 4, 5]), HandSequence(1, [3, 4], never), HandSequence(2, [3, 4, 5], later)]
        work, outcomes = [(row, len(row.tokens)) for row in rows], []
        while len(work) > 1:
            plan = planner.plan(work)
            outcome = made.launch(plan).wait()
            assert outcome.replayed == (made.device.torch_device.type == "cuda")
            take(rows, plan, outcome)
            outcomes.append((outcome.token_ids.tolist(), outcome.failed_rows, outcome.barred_rows))
            work = [(row, 1) for row, _ in work if row.row not in outcome.failed_rows]
        told.append(outcomes)
    assert told[0] == told[1]
    assert told[1][0][1:] == ((1,), {1})
    assert told[1][-1][1:] == ((2,), {2})
    assert len(told[1]) > 2


@pytest.mark.parametrize("graphs", [False, True])
def test_log_probabilities_are_those_of_the_cpu(folder: Path, graphs: bool) -> None:
    asking = Sampling(0.7, 0.9, 40, 0.0, 5, frequency_penalty=0.5, logprobs=5, prompt_logprobs=2)

    def told(made: ModelRunner) -> list[np.ndarray]:
        rows = [HandSequence(0, [5, 6, 7]), HandSequence(1, [9, 8, 7, 6, 5, 4, 3], asking)]
        planner, found = HandPlanner(256, 4), []
        while waiting := [row for row in rows if len(row.outputs) < 12]:
            plan = planner.plan([(row, min(3, len(row.tokens) - row.computed)) for row in waiting])
            outcome = made.launch(plan).wait()
            take(rows, plan, outcome)
            found += [values.values for _, _, values in outcome.prompt_logprobs]
            found += [outcome.logprobs.values] if outcome.logprobs is not None else []
        return found

    expected, found = told(runner(folder, "cpu")), told(runner(folder, "cuda", graphs))
    assert len(found) == len(expected) > 12
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)

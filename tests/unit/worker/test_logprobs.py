"""Log-probabilities against transformers' log-softmax (A15): of samples and of prompts, however chunked."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from gpu_worker.logprobs import LOWEST, logprobs_of
from gpu_worker.model_runner import ModelRunner, StepOutcome
from gpu_worker.wire import Sampling, TokenLogprobs
from tests.fixtures.hand_plans import GREEDY, HandPlanner, HandSequence, take
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import change_logits, make_runner

BLOCK = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), TinyShape("qwen3", seed=12))


@pytest.fixture(scope="module")
def model(folder: Path) -> AutoModelForCausalLM:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def reference(model: AutoModelForCausalLM, tokens: Sequence[int]) -> Tensor:
    """[len(tokens), vocab]: of position i + 1 after the first i + 1 tokens."""
    with torch.inference_mode():
        return model(torch.tensor([list(tokens)])).logits[0].log_softmax(-1)  # type: ignore[operator, no-any-return]


def check(found: TokenLogprobs, wanted: Tensor, tokens: Sequence[int], top: int) -> None:
    """wanted [N, vocab] of the positions that hold these tokens [N]."""
    assert found.ids.shape == (len(tokens), 1 + top)
    assert found.ids[:, 0].tolist() == list(tokens)
    own = wanted[torch.arange(len(tokens)), torch.tensor(tokens)]
    np.testing.assert_allclose(found.values[:, 0], own.numpy(), atol=1e-4)
    likely = wanted.topk(max(top, 1)).values[:, :top]
    np.testing.assert_allclose(found.values[:, 1:], likely.numpy(), atol=1e-4)
    named = np.take_along_axis(wanted.numpy(), found.ids[:, 1:].astype(np.int64), 1)
    np.testing.assert_allclose(named, found.values[:, 1:], atol=1e-4)


def steps(
    runner: ModelRunner, planner: HandPlanner, rows: list[HandSequence], outputs: int, chunk: int
) -> list[StepOutcome]:
    outcomes = []
    while waiting := [row for row in rows if len(row.outputs) < outputs]:
        plan = planner.plan([(row, min(chunk, len(row.tokens) - row.computed)) for row in waiting])
        outcomes.append(runner.launch(plan).wait())
        take(rows, plan, outcomes[-1])
    return outcomes


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 100])
@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 11])
def test_a15_prompt_logprobs_are_whole_and_right_in_any_chunks(
    folder: Path, model: AutoModelForCausalLM, chunk: int, length: int
) -> None:
    prompt = [5 + 7 * at % 200 for at in range(length)]
    runner = make_runner(folder)
    asking = HandSequence(2, list(prompt), Sampling(0.0, 1.0, 0, 0.0, 0, prompt_logprobs=3))
    beside = HandSequence(0, [9, 8, 7, 6, 5, 4, 3], GREEDY)
    outcomes = steps(runner, HandPlanner(64, BLOCK), [beside, asking], 3, chunk)
    parts = [part for outcome in outcomes for part in outcome.prompt_logprobs]
    assert all(row == 2 for row, _, _ in parts)
    assert [first + at for _, first, part in parts for at in range(len(part.ids))] == list(range(1, length))
    assert all(outcome.logprobs is None for outcome in outcomes)
    wanted = reference(model, prompt)
    for _, first, part in parts:
        last = first + len(part.ids)
        check(part, wanted[first - 1 : last - 1], prompt[first:last], 3)


def test_a15_sampled_tokens_are_told_raw_whatever_they_were_drawn_under(
    folder: Path, model: AutoModelForCausalLM
) -> None:
    """Temperature, top_k and penalties change the draw and not the value; only rows that ask are told of."""
    runner = make_runner(folder)
    samplings = [
        Sampling(0.0, 1.0, 0, 0.0, 0, logprobs=0),
        GREEDY,
        Sampling(1.5, 0.9, 5, 0.0, 3, logprobs=20),
        Sampling(0.0, 1.0, 0, 0.0, 0, repetition_penalty=1.5, bias_ids=(3,), bias_values=(50.0,), logprobs=2),
    ]
    rows = [HandSequence(row, [10 + row, 3, 5], sampling) for row, sampling in enumerate(samplings)]
    outcomes = steps(runner, HandPlanner(64, BLOCK), rows, 4, 100)
    for step, outcome in enumerate(outcomes):
        assert outcome.logprobs is not None
        assert outcome.logprobs.ids.shape == (3, 21), "as wide as the row that asks for most"
        for place, row in enumerate((rows[0], rows[2], rows[3])):
            wanted = reference(model, row.tokens[: 3 + step])[-1:]
            own = TokenLogprobs(
                outcome.logprobs.ids[place : place + 1], outcome.logprobs.values[place : place + 1]
            )
            check(own, wanted, [row.outputs[step]], 20)


def test_a15_minus_infinity_has_a_finite_form() -> None:
    logits = torch.full((1, 30), float("-inf"))
    logits[0, 4] = 1.0
    packed = logprobs_of(logits, torch.tensor([7]), 2)
    values = packed[0, 1].view(torch.float32)
    assert values.tolist()[:2] == [LOWEST, 0.0]
    assert values[2] == LOWEST


def test_a21_logprobs_of_a_failed_row_cost_the_others_nothing(folder: Path) -> None:
    runner = make_runner(folder)
    asking = Sampling(0.0, 1.0, 0, 0.0, 0, logprobs=1)
    rows = [HandSequence(row, [10 + row, 3, 5], asking) for row in range(3)]
    plan = HandPlanner(64, BLOCK).plan([(row, 3) for row in rows])
    healthy = runner.launch(plan).wait()
    runner.reset()

    def spoil(logits: Tensor) -> Tensor:
        logits[1] = float("nan")
        return logits

    change_logits(runner, spoil)
    rows = [HandSequence(row, [10 + row, 3, 5], asking) for row in range(3)]
    outcome = runner.launch(HandPlanner(64, BLOCK).plan([(row, 3) for row in rows])).wait()
    assert outcome.failed_rows == (1,)
    assert outcome.logprobs is not None
    assert healthy.logprobs is not None
    for row in (0, 2):
        np.testing.assert_array_equal(outcome.logprobs.values[row], healthy.logprobs.values[row])

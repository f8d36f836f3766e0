"""Changed logits on the device against a plain reference: definitions, order, history, neighbours (A18)."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from gpu_worker.adjustments import Adjustments
from gpu_worker.device import open_device
from gpu_worker.errors import PlanError
from gpu_worker.model_runner import ModelRunner
from gpu_worker.wire import RowSetup, Sampling
from tests.fixtures.hand_plans import GREEDY, HandPlanner, HandSequence, run, take
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import change_logits, make_runner

VOCAB = 50


def asking(**fields: object) -> Sampling:
    return Sampling(0.0, 1.0, 0, 0.0, 0, **fields)  # type: ignore[arg-type]


def reference(
    logits: Sequence[float], sampling: Sampling, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    """One row, one rule after the other."""
    changed = list(logits)
    for token, value in zip(sampling.bias_ids, sampling.bias_values, strict=True):
        changed[token] += value
    if len(output) < sampling.min_tokens:
        for token in sampling.suppressed_ids:
            changed[token] = float("-inf")
    for token in {*prompt, *output}:
        penalty = sampling.repetition_penalty
        changed[token] = changed[token] / penalty if changed[token] > 0 else changed[token] * penalty
    for token, count in Counter(output).items():
        changed[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    return changed


CASES = [
    asking(presence_penalty=0.7),
    asking(frequency_penalty=-0.5),
    asking(repetition_penalty=1.3),
    asking(repetition_penalty=0.5),
    asking(bias_ids=(3, 9), bias_values=(100.0, -100.0)),
    asking(suppressed_ids=(1, 2, 49), min_tokens=4),
    asking(suppressed_ids=(1, 2), min_tokens=2),
    asking(
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=1.7,
        bias_ids=(0, 5, 6, 7),
        bias_values=(1.0, -1.0, 0.5, 30.0),
        suppressed_ids=(7,),
        min_tokens=1,
    ),
]


def ids(values: Sequence[int]) -> np.ndarray:
    return np.asarray(values, np.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixed_rows_follow_the_reference_as_tokens_are_counted(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    device = open_device("cpu", 1)
    adjustments = Adjustments(device, 16, VOCAB)
    prompt, output = [4, 4, 8, 0], [5, 5, 9]
    histories = [list(output) for _ in CASES]
    for row, case in enumerate(CASES):
        adjustments.set_up(RowSetup(row, len(prompt), case, ids(prompt), ids(output)))
    for _ in range(4):
        logits = torch.randn(len(CASES), VOCAB, generator=generator, dtype=torch.float64) * 3
        wanted = [
            reference(row.tolist(), case, prompt, history)
            for row, case, history in zip(logits, CASES, histories, strict=True)
        ]
        slots = adjustments.slots(ids(range(len(CASES))))
        positions = np.array([len(history) for history in histories], np.int64)
        changed = adjustments.apply(logits.to(dtype), slots, positions)
        torch.testing.assert_close(changed.double(), torch.tensor(wanted).double(), atol=1e-5, rtol=1e-5)
        drawn = torch.randint(0, 10, (len(CASES),), generator=generator)
        adjustments.count(slots, drawn)
        for history, token in zip(histories, drawn.tolist(), strict=True):
            history.append(token)


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    adjustments = Adjustments(open_device("cpu", 1), 2, VOCAB)
    context = [4, 4, 8, 0, 5]
    adjustments.set_up(RowSetup(1, 3, asking(repetition_penalty=1.25), ids(context[:3]), ids(context[3:])))
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(6))
    wanted = RepetitionPenaltyLogitsProcessor(1.25)(torch.tensor([context]), logits.clone())
    changed = adjustments.apply(logits, adjustments.slots(ids([1])), np.array([2], np.int64))
    assert torch.equal(changed, wanted)


def test_a_slot_used_again_knows_nothing_of_its_last_row() -> None:
    adjustments = Adjustments(open_device("cpu", 1), 40, VOCAB)
    wide = asking(repetition_penalty=2.0, bias_ids=tuple(range(20)), bias_values=(5.0,) * 20)
    for row in range(30):  # more than the first slots: the memory grows under live rows
        adjustments.set_up(RowSetup(row, 2, wide, ids([row, row]), ids([1])))
    logits = torch.ones(30, VOCAB)
    changed = adjustments.apply(logits, adjustments.slots(ids(range(30))), np.ones(30, np.int64))
    assert [float(changed[row, row]) for row in (2, 19, 20, 29)] == [3.0, 3.0, 0.5, 0.5]
    adjustments.release(ids(range(30)))
    adjustments.set_up(RowSetup(7, 1, asking(presence_penalty=1.0), ids([3]), ids([])))
    changed = adjustments.apply(torch.ones(1, VOCAB), adjustments.slots(ids([7])), np.zeros(1, np.int64))
    assert torch.equal(changed, torch.ones(1, VOCAB))


# ---- in steps of a real runner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), TinyShape("llama", seed=8))


@pytest.fixture
def runner(folder: Path) -> ModelRunner:
    return make_runner(folder)


PROMPTS = [[3 + (5 * row + at) % 90 for at in range(4 + 3 * row)] for row in range(6)]
SAMPLINGS = [
    GREEDY,
    asking(repetition_penalty=1.8),
    asking(presence_penalty=1.5, frequency_penalty=0.5, bias_ids=(11,), bias_values=(2.0,)),
    Sampling(0.9, 0.8, 30, 0.01, 77, frequency_penalty=1.0),
    Sampling(1.0, 1.0, 0, 0.0, 5),
    asking(suppressed_ids=tuple(range(0, 380, 2)), min_tokens=3),
]


def crowd() -> list[HandSequence]:
    pairs = zip(PROMPTS, SAMPLINGS, strict=True)
    return [HandSequence(row, list(prompt), sampling) for row, (prompt, sampling) in enumerate(pairs)]


def single_outputs(runner: ModelRunner, outputs: int) -> list[list[int]]:
    alone = []
    for sequence in crowd():
        runner.reset()
        run(runner, HandPlanner(64, 4, seed=sequence.row), [sequence], outputs)
        alone.append(sequence.outputs)
    runner.reset()
    return alone


def test_a18_rows_that_ask_change_neither_their_neighbours_nor_themselves(runner: ModelRunner) -> None:
    """Alone, in a crowd, in chunks, and set up again with their history as after a preemption."""
    alone = single_outputs(runner, 9)
    plain = HandSequence(0, list(PROMPTS[1]))
    run(runner, HandPlanner(64, 4), [plain], 9)
    assert plain.outputs != alone[1], "the penalty of this row has to matter"
    runner.reset()
    together = crowd()
    run(runner, HandPlanner(64, 4), together, 9)
    assert [sequence.outputs for sequence in together] == alone
    runner.reset()
    planner, resumed = HandPlanner(64, 4, seed=3), crowd()
    run(runner, planner, resumed, 4, chunk=3)
    for sequence in resumed:
        planner.release(sequence)
        sequence.table, sequence.computed, sequence.is_set_up = [], 0, False
    run(runner, planner, resumed, 9, chunk=5)
    assert [sequence.outputs for sequence in resumed] == alone


def test_a18_two_steps_in_flight_count_the_token_that_only_the_device_knows(runner: ModelRunner) -> None:
    alone = single_outputs(runner, 6)
    planner, together = HandPlanner(64, 4, seed=9), crowd()
    waiting = []
    plan = planner.plan([(sequence, len(sequence.tokens)) for sequence in together])
    waiting.append((plan, runner.launch(plan)))
    for _ in range(5):
        for sequence in together:
            sequence.tokens.append(-1)
        plan = planner.plan([(s, 1) for s in together], input_ids=np.full(len(together), -1, np.int32))
        for sequence in together:
            sequence.tokens.pop()
        waiting.append((plan, runner.launch(plan)))
        done, pending = waiting.pop(0)
        take(together, done, pending.wait())
    for done, pending in waiting:
        take(together, done, pending.wait())
    assert [sequence.outputs for sequence in together] == alone


def test_a21_a_bad_row_that_asks_fails_alone(runner: ModelRunner) -> None:
    alone = single_outputs(runner, 2)

    def spoil(logits: Tensor) -> Tensor:
        if len(logits) == len(PROMPTS):
            logits[1, 5] = float("nan")
            logits[2, 6] = float("inf")
        return logits

    change_logits(runner, spoil)
    together = crowd()
    plan = HandPlanner(64, 4).plan([(sequence, len(sequence.tokens)) for sequence in together])
    outcome = runner.launch(plan).wait()
    assert outcome.failed_rows == (1, 2)
    expected = [-1 if row in (1, 2) else alone[row][0] for row in range(len(alone))]
    assert outcome.token_ids.tolist() == expected


@pytest.mark.parametrize(
    ("field", "sampling"),
    [
        ("row_setups.sampling.presence_penalty", asking(presence_penalty=float("nan"))),
        ("row_setups.sampling.repetition_penalty", asking(repetition_penalty=-1.0)),
        ("row_setups.sampling.logit_bias_values", asking(bias_ids=(1,), bias_values=(float("inf"),))),
        ("row_setups.sampling.logit_bias_values", asking(bias_ids=(1,), bias_values=())),
        ("row_setups.sampling.logit_bias_ids", asking(bias_ids=(10**6,), bias_values=(1.0,))),
        ("row_setups.sampling.suppressed_ids", asking(suppressed_ids=(-1,), min_tokens=1)),
        ("row_setups.sampling.logprobs", asking(logprobs=21)),
    ],
)
def test_a_set_up_out_of_bounds_names_the_field(runner: ModelRunner, field: str, sampling: Sampling) -> None:
    plan = HandPlanner(64, 4).plan([(HandSequence(0, [1, 2, 3], sampling), 3)])
    with pytest.raises(PlanError) as caught:
        runner.launch(plan)
    assert caught.value.field == field


def test_penalties_without_the_prompt_are_refused(runner: ModelRunner) -> None:
    setup = RowSetup(0, 3, asking(presence_penalty=1.0))
    plan = HandPlanner(64, 4).plan([(HandSequence(0, [1, 2, 3]), 3)], setups=(setup,))
    with pytest.raises(PlanError, match="0 ids, prompt_len is 3"):
        runner.launch(plan)


def test_draws_follow_the_changed_distribution(runner: ModelRunner) -> None:
    """Chi-square of 4,000 draws of rows with bias, penalties and temperature, at 5 deviations."""
    flat = torch.linspace(-1, 1, runner.rows.limits.vocab_size)
    change_logits(runner, lambda logits: flat.expand(len(logits), -1).clone())
    sampling = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.5}
    bias = {"bias_ids": (7, 8), "bias_values": (6.0, 7.0)}
    prompt, counts, draws = [7, 5, 9], Counter[int](), 4000
    for first in range(0, draws, 8):
        runner.reset()
        rows = [
            HandSequence(row, list(prompt), Sampling(1.3, 1.0, 0, 0.0, first + row, **sampling, **bias))  # type: ignore[arg-type]
            for row in range(8)
        ]
        run(runner, HandPlanner(64, 4), rows, 1)
        counts.update(sequence.outputs[0] for sequence in rows)
    changed = reference(flat.tolist(), rows[0].sampling, prompt, [])
    wanted = (torch.tensor(changed).double() / 1.3).softmax(-1) * draws
    bins = {token: float(wanted[token]) for token in (7, 8)}
    rest = draws - sum(bins.values())
    statistic = sum((counts[token] - share) ** 2 / share for token, share in bins.items())
    statistic += (draws - counts[7] - counts[8] - rest) ** 2 / rest
    assert rest > 100
    assert statistic <= 2 + 5 * 4**0.5

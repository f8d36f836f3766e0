"""The compiled layers: close to the torch decoder in every format, the same bits in every batch and chunk."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpu_worker.model_runner import ModelRunner
from gpu_worker.models.cpu_decoder import CpuDecoder
from paged_kernels.cpu_impl import library
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run, take
from tests.fixtures.hf_families import FAMILIES, write_hf_model
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import change_logits, make_runner

SHAPES: dict[str, TinyShape] = {
    "llama": TinyShape("llama", seed=21),
    "odd-widths": TinyShape("llama", seed=22, heads=9, kv_heads=3, hidden=72, head_dim=8, intermediate=100),
    "qwen3": TinyShape("qwen3", seed=23, heads=4, kv_heads=1, head_dim=32, tie=True),
}
BLOCK = 4
# Relative error of logits against the torch decoder in float32.
ALLOWED = {
    ("float32", None): 5e-6,
    ("bfloat16", None): 4e-2,
    ("float32", "int8"): 5e-2,
    ("float32", "int4"): 0.5,
}


# Norms around and after blocks and over all heads, windows, caps, gelu, partial rotation, two ropes.
SPECIAL = ("gemma2", "gemma3_text", "mistral with a window", "olmo2 with biases", "phi3 that rotates a part")


@pytest.fixture(scope="module", params=[*sorted(SHAPES), *SPECIAL])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param in SPECIAL:
        return write_hf_model(tmp_path_factory.mktemp("model"), request.param, FAMILIES[request.param])
    return write_tiny_model(tmp_path_factory.mktemp(request.param), SHAPES[request.param])


@pytest.fixture(autouse=True)
def two_threads() -> None:
    library.load().set_threads(2)


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, 380, (length,), generator=generator).tolist()


def watch(runner: ModelRunner) -> list[Tensor]:
    """The logits of every step from now on."""
    seen: list[Tensor] = []

    def keep(logits: Tensor) -> Tensor:
        seen.append(logits.clone())
        return logits

    change_logits(runner, keep)
    return seen


def last_logits(runner: ModelRunner, ids: list[int], chunk: int, others: list[list[int]]) -> Tensor:
    """Logits after a prompt that goes in chunks, with whole other prompts in the step of its last chunk."""
    seen, planner = watch(runner), HandPlanner(64, BLOCK, seed=chunk)
    sequence = HandSequence(0, list(ids))
    crowd = [HandSequence(row + 1, list(other)) for row, other in enumerate(others)]
    while sequence.computed < len(ids):
        count = min(chunk, len(ids) - sequence.computed)
        last = sequence.computed + count == len(ids)
        work = [*((other, len(other.tokens)) for other in crowd if last), (sequence, count)]
        runner.launch(planner.plan(work)).wait()
    return seen[-1][-1]


@pytest.mark.parametrize(("dtype", "quantize"), sorted(ALLOWED, key=str), ids=str)
def test_logits_are_those_of_the_torch_decoder(folder: Path, dtype: str, quantize: str | None) -> None:
    ids = prompt(19)
    runner = make_runner(folder, dtype, quantize=quantize)
    assert isinstance(runner.decoder, CpuDecoder)
    ours = last_logits(runner, ids, 100, [])
    theirs = last_logits(make_runner(folder, "float32", backend="torch"), ids, 100, [])
    assert (ours - theirs).norm() <= ALLOWED[dtype, quantize] * theirs.norm()


@pytest.mark.parametrize(("dtype", "quantize"), sorted(ALLOWED, key=str), ids=str)
def test_the_same_bits_alone_in_a_crowd_and_in_any_chunks(
    folder: Path, dtype: str, quantize: str | None
) -> None:
    ids = prompt(70, seed=1)
    crowd = [prompt(n, seed=2) for n in (1, 16, 33)]
    wanted = last_logits(make_runner(folder, dtype, quantize=quantize), ids, 100, [])
    for chunk in (1, 7, 64):
        runner = make_runner(folder, dtype, quantize=quantize)
        assert last_logits(runner, ids, chunk, crowd).equal(wanted)


def test_bfloat16_outputs_do_not_depend_on_the_batch_or_on_recomputing(folder: Path) -> None:
    """What a preemption does: the prompt and the outputs so far are computed again, in one piece."""
    prompts = [prompt(n, seed=3) for n in (5, 17, 30)]
    crowd = [HandSequence(row, list(ids)) for row, ids in enumerate(prompts)]
    run(make_runner(folder, "bfloat16"), HandPlanner(64, BLOCK), crowd, 12, chunk=9)
    for sequence, ids in zip(crowd, prompts, strict=True):
        again = HandSequence(0, ids + sequence.outputs[:6])
        runner, planner = make_runner(folder, "bfloat16"), HandPlanner(64, BLOCK, seed=5)
        for _ in range(6):
            plan = planner.plan([(again, len(again.tokens) - again.computed)])
            take([again], plan, runner.launch(plan).wait())
        assert again.outputs == sequence.outputs[6:]


def test_a_row_of_nan_fails_alone(folder: Path) -> None:
    """A31: an infinite embedding makes that row's logits NaN and leaves the others' bits."""
    runner, planner = make_runner(folder, "bfloat16"), HandPlanner(64, BLOCK)
    assert isinstance(runner.decoder, CpuDecoder)
    runner.decoder._embedding[7] = torch.inf
    bad, good = HandSequence(0, [7, 8]), HandSequence(1, prompt(9))
    outcome = runner.launch(planner.plan([(bad, 2), (good, 9)])).wait()
    assert outcome.failed_rows == (0,)
    assert outcome.token_ids[1] >= 0

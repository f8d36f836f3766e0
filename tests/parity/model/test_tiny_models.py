"""Whole tiny random models on handmade plans against transformers: every chunking, boundary and sharing."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.fixtures.hand_plans import HandPlanner, HandSequence, run, take
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import change_logits, make_runner

SHAPES = {
    "llama": TinyShape("llama", seed=1),
    "llama-tied-gqa3": TinyShape("llama", seed=2, heads=9, kv_heads=3, hidden=72, head_dim=8, tie=True),
    "qwen3": TinyShape("qwen3", seed=3),
    "qwen3-wide-heads": TinyShape("qwen3", seed=4, heads=4, kv_heads=1, hidden=48, head_dim=32, tie=True),
}
OUTPUTS = 6
BLOCK = 4


@pytest.fixture(scope="module", params=sorted(SHAPES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp(request.param), SHAPES[request.param])


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, 380, (length,), generator=generator).tolist()


def reference(folder: Path, prompts: list[list[int]], dtype: torch.dtype) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    outputs = []
    for ids in prompts:
        tokens = torch.tensor([ids])
        with torch.inference_mode():
            for _ in range(OUTPUTS):
                last = model(tokens).logits[:, -1]
                tokens = torch.cat([tokens, last.argmax(-1, keepdim=True)], dim=1)
        outputs.append(tokens[0, len(ids) :].tolist())
    return outputs


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lengths_around_block_boundaries_alone_and_together(folder: Path, dtype: str) -> None:
    """A10, A12: prompt lengths 1, bs-1, bs, bs+1, 2bs, 3bs+1; alone, and in one batch, chunked by 1,
    bs-1, bs+1.
    """
    prompts = [prompt(n) for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 1)]
    expected = reference(folder, prompts, getattr(torch, dtype))
    alone = []
    for ids in prompts:
        single = HandSequence(0, list(ids))
        run(make_runner(folder, dtype), HandPlanner(64, BLOCK, seed=len(ids)), [single], OUTPUTS)
        alone.append(single.outputs)
    assert alone == expected
    for chunk in (1, BLOCK - 1, BLOCK + 1, 1000):
        crowd = [HandSequence(row, list(ids)) for row, ids in enumerate(prompts)]
        run(make_runner(folder, dtype), HandPlanner(64, BLOCK, seed=chunk), crowd, OUTPUTS, chunk)
        assert [sequence.outputs for sequence in crowd] == expected


@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_any_block_size(folder: Path, block_size: int) -> None:
    prompts = [prompt(n, seed=5) for n in (1, 15, 16, 33)]
    crowd = [HandSequence(row, list(ids)) for row, ids in enumerate(prompts)]
    runner = make_runner(folder, num_blocks=256 // block_size, block_size=block_size)
    run(runner, HandPlanner(256 // block_size, block_size), crowd, OUTPUTS, chunk=7)
    assert [sequence.outputs for sequence in crowd] == reference(folder, prompts, torch.float32)


def test_shared_prefix_in_the_step_that_fills_it(folder: Path) -> None:
    """A06: a row may read blocks that an earlier row of the same step writes, for the store comes first."""
    ids = prompt(3 * BLOCK + 2, seed=7)
    first, second = HandSequence(0, ids), HandSequence(1, ids[: 2 * BLOCK] + prompt(3, seed=8))
    expected = reference(folder, [list(first.tokens), list(second.tokens)], torch.float32)
    runner, planner = make_runner(folder), HandPlanner(64, BLOCK)
    first.table = [planner._free.pop(0) for _ in range(2)]
    planner.share(first, second, 2 * BLOCK)
    plan = planner.plan([(second, 3), (first, len(ids))])
    take([first, second], plan, runner.launch(plan).wait())
    run(runner, planner, [first, second], OUTPUTS)
    assert [first.outputs, second.outputs] == expected


def test_tokens_in_flight_are_resolved_on_the_device(folder: Path) -> None:
    """Depth 2: the next step is launched with -1 before the answer of this one is read."""
    ids = prompt(9, seed=9)
    sequence = HandSequence(3, list(ids))
    runner, planner = make_runner(folder), HandPlanner(64, BLOCK)
    pending = [runner.launch(planner.plan([(sequence, 9)]))]
    pending += [runner.launch(planner.plan([(sequence, 1)])) for _ in range(OUTPUTS - 1)]
    outputs = [int(step.wait().token_ids[0]) for step in pending]
    assert outputs == reference(folder, [ids], torch.float32)[0]


def test_a_copied_block_continues_as_the_original(folder: Path) -> None:
    """Copy-on-write of a partial tail: the copy runs before the forward pass of its step."""
    ids = prompt(BLOCK + 2, seed=11)
    parent, child = HandSequence(0, list(ids)), HandSequence(1, list(ids))
    runner, planner = make_runner(folder), HandPlanner(64, BLOCK)
    run(runner, planner, [parent], 1)
    child.tokens = list(parent.tokens)
    child.computed = parent.computed
    fresh = planner._free.pop(0)
    child.table = [parent.table[0], fresh]
    plan = planner.plan([(child, 1)], copy_pairs=torch.tensor([[parent.table[1], fresh]]).int().numpy())
    take([child], plan, runner.launch(plan).wait())
    run(runner, planner, [parent, child], OUTPUTS)
    assert parent.outputs == child.outputs == reference(folder, [ids], torch.float32)[0]


def test_logits_are_close_in_double_precision(folder: Path) -> None:
    ids = prompt(13, seed=12)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    runner, planner = make_runner(folder, "float64"), HandPlanner(64, BLOCK)
    seen: list[torch.Tensor] = []
    change_logits(runner, lambda logits: seen.append(logits.clone()) or logits)  # type: ignore[func-returns-value]
    runner.launch(planner.plan([(HandSequence(0, ids), 13)])).wait()
    with torch.inference_mode():
        wanted = model(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(seen[0][0], wanted, atol=2e-6, rtol=2e-6)

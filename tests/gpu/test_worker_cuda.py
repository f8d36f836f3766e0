"""The worker on a CUDA device: tiny models against transformers, no synchronisation while launching, the
sampler.

Owns the verdicts on the CUDA side of the worker's one device door; knows no scheduler. Invariant: float32
is compared without TF32.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from gpu_worker.config import read_settings
from gpu_worker.estimates import activation_bytes
from gpu_worker.loading import examine, load
from gpu_worker.sampler import SampleRows, sample, uniform
from gpu_worker.wire import Sampling
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run
from tests.fixtures.hf_families import FAMILIES, write_hf_model
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import make_runner
from tests.unit.worker.test_sampler import rows_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
SHAPES = [
    TinyShape("llama", seed=31),
    TinyShape("qwen3", seed=32, heads=4, kv_heads=1, head_dim=32, tie=True),
]
OUTPUTS = 12


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: shape.family)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), request.param)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 380, (n,), generator=generator).tolist() for n in (1, 15, 16, 17, 33, 70)]


@pytest.mark.parametrize("chunk", [5, 1000])
@pytest.mark.parametrize("block_size", [1, 16])
def test_tiny_models_give_transformers_tokens(folder: Path, chunk: int, block_size: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    expected = []
    for ids in prompts():
        tokens = torch.tensor([ids])
        for _ in range(OUTPUTS):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
        expected.append(tokens[0, len(ids) :].tolist())
    crowd = [HandSequence(row, list(ids)) for row, ids in enumerate(prompts())]
    runner = make_runner(folder, num_blocks=512 // block_size, block_size=block_size, on="cuda")
    assert {choice.backend for choice in runner.kernels.choices} == {"triton"}
    run(runner, HandPlanner(512 // block_size, block_size), crowd, OUTPUTS, chunk)
    assert [sequence.outputs for sequence in crowd] == expected


@pytest.mark.parametrize("family", ["gemma2", "mistral with a window", "mixtral with a window", "phi3"])
def test_families_of_other_layers(family: str, tmp_path: Path) -> None:
    """Windows and experts run on fused kernels, caps on torch around our attention; all in graphs."""
    write_hf_model(tmp_path, family, FAMILIES[family])
    own = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, **own)
    expected = []
    for ids in prompts():
        tokens = torch.tensor([ids])
        for _ in range(OUTPUTS):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
        expected.append(tokens[0, len(ids) :].tolist())
    for captured in (False, True):
        runner = make_runner(tmp_path, num_blocks=64, block_size=16, on="cuda")
        assert (runner.fused is None) == (family == "gemma2")
        if captured:
            runner.capture_graphs()
        crowd = [HandSequence(row, list(ids)) for row, ids in enumerate(prompts())]
        run(runner, HandPlanner(64, 16), crowd, OUTPUTS, 19)
        assert [sequence.outputs for sequence in crowd] == expected


def test_launching_never_waits_for_the_device(folder: Path) -> None:
    """Greedy and filtered sampling, prefill and decode, tokens in flight: torch raises at any
    synchronisation.
    """
    runner, planner = make_runner(folder, block_size=16, on="cuda"), HandPlanner(64, 16)
    hot = Sampling(temperature=0.8, top_p=0.9, top_k=20, min_p=0.01, seed=5)
    crowd = [HandSequence(0, [5, 6, 7]), HandSequence(1, [8, 9], hot)]
    runner.launch(planner.plan([(crowd[0], 3), (crowd[1], 2)])).wait()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = [runner.launch(planner.plan([(one, 1) for one in crowd])) for _ in range(20)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    outcomes = [step.wait() for step in pending]
    assert all(outcome.forward_seconds > 0 for outcome in outcomes)
    assert all((outcome.token_ids >= 0).all() for outcome in outcomes)


def test_random_state_is_the_same_on_every_device() -> None:
    seeds = torch.arange(-500, 500) * 982451653
    positions = torch.arange(1000)
    assert torch.equal(uniform(seeds, positions), uniform(seeds.cuda(), positions.cuda()).cpu())


def test_sampled_tokens_are_the_same_on_every_device() -> None:
    logits = torch.randn(400, 5000, generator=torch.Generator().manual_seed(2)) * 3
    rows = rows_of(
        [0.0 if row % 5 == 0 else 0.5 + row / 400 for row in range(400)],
        [row % 50 for row in range(400)],
        [1.0 if row % 3 else 0.9 for row in range(400)],
        [0.0 if row % 4 else 0.02 for row in range(400)],
    )
    assert rows.random is not None
    there = SampleRows(
        parameters=rows.parameters.cuda(),
        draws=rows.draws.cuda(),
        random=rows.random.cuda(),
        max_top_k=rows.max_top_k,
        all_top_k=rows.all_top_k,
        any_top_p=rows.any_top_p,
    )
    here_tokens, _ = sample(logits, rows)
    there_tokens, _ = sample(logits.cuda(), there)
    assert torch.equal(here_tokens, there_tokens.cpu())


@pytest.mark.parametrize("vocab", [1000, 49152, 151936])
def test_greedy_takes_the_lowest_id_on_ties(vocab: int) -> None:
    logits = torch.zeros(8, vocab, device="cuda", dtype=torch.bfloat16)
    for row in range(1, 8):
        logits[row, vocab // 2 :: row] = 1.0
    tokens, bad = sample(logits, None)
    assert tokens.tolist() == [0] + [vocab // 2] * 7
    assert not bad.any()


def test_pool_is_sized_from_free_memory_and_the_estimate_holds(tmp_path: Path) -> None:
    """A31 on a real device: the largest step takes no more than the activations set aside."""
    shape = TinyShape(
        "llama", hidden=512, heads=8, kv_heads=4, head_dim=64, intermediate=2048, vocab_size=32000
    )
    model = write_tiny_model(tmp_path, shape)
    flags = ["--model", str(model), "--device", "cuda", "--dtype", "bfloat16", "--max-num-seqs", "64"]
    found = examine(
        read_settings([*flags, "--gpu-memory-utilization", "0.5", "--max-num-batched-tokens", "4096"])
    )
    loaded = load(found)
    memory = loaded.capacity.memory
    assert memory.budget_bytes <= memory.total_bytes // 2
    assert loaded.capacity.device == torch.cuda.get_device_name()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    crowd = [HandSequence(row, [3 + row] * 64) for row in range(64)]
    plan = HandPlanner(loaded.capacity.num_blocks, 16).plan([(one, 64) for one in crowd])
    loaded.runner.launch(plan).wait()
    assert torch.cuda.max_memory_allocated() - before <= activation_bytes(found)

"""flash-attn 2 and flash-attn-4 on a CUDA device: drawn shapes, padding, graphs, the choice, the service.

Owns the verdicts on both; knows no kernel of theirs. Invariant: outputs are poisoned, unused slots are NaN,
and a package that is not installed skips its tests by name.
"""

import asyncio
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpu_worker.config import read_settings
from gpu_worker.loading import examine
from paged_kernels import dispatch, torch_impl
from paged_kernels.attention_backends import PACKAGES, PHASES, ByPhase, Candidate
from paged_kernels.attention_trial import Bounds, Case, decode_cases, make_inputs, mixed_cases, seconds_of
from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.dispatch import Kernels
from paged_kernels.flash_impl.constraints import FLASH2, FLASH4, AttentionShape
from paged_kernels.testing import draw_shape, judge, make_batch, relative_error
from tests.e2e.processes import Processes
from tests.e2e.service import request
from tests.fixtures.graph_cases import steady_outputs
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import make_runner
from tests.harness.plants import TINY_TOKENS, tiny_plant, tiny_prompts
from tests.harness.reference import from_folder
from tests.harness.service_run import Runner
from tests.harness.settings import covering_settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
# Block sizes; (dtype, head_dim, query heads per KV head), for each of which flash-attn-4 compiles a kernel.
SIZES = {FLASH2: (256, 512, 1024), FLASH4: (1, 2, 7, 16, 17, 32, 64, 100, 256, 1000, 4096)}
MODELS = [
    (torch.bfloat16, 128, 2),
    (torch.bfloat16, 128, 4),
    (torch.bfloat16, 64, 1),
    (torch.bfloat16, 64, 3),
    (torch.bfloat16, 128, 16),
]
SERVED = TinyShape("qwen3", seed=51, heads=4, kv_heads=2, head_dim=64, tie=True)


@pytest.fixture(params=[FLASH2, FLASH4])
def package(request: pytest.FixtureRequest) -> Candidate:
    try:
        return loaded(request.param)
    except BackendUnavailableError as error:
        pytest.skip(f"{request.param}: {error}")


def loaded(name: str) -> Candidate:
    return PACKAGES[name][1]()


def usual_size(package: Candidate) -> int:
    return 256 if package.name == FLASH2 else 16


def kernels_of(package: Candidate, block_size: int, head_dim: int) -> Kernels:
    kernels = dispatch.select("triton", "cuda", torch.bfloat16, head_dim, block_size)
    return replace(kernels, paged_attention=ByPhase(package.decode, package.mixed))


@pytest.mark.parametrize("model", range(len(MODELS)))
def test_drawn_shapes(package: Candidate, model: int) -> None:
    """Decodes, prompts, chunks and rows without a new token, over block tables in any order."""
    dtype, head_dim, group = MODELS[model]
    rng, wrong = random.Random(model), []
    for number in range(24):
        size = rng.choice(SIZES[package.name])
        shape = draw_shape(rng, size, head_dim, rng.choice((40, 300, 2500)), 8)
        if number % 4 == 0:
            shape = replace(shape, rows=tuple((1, context) for _, context in shape.rows))
        shape = replace(shape, group=group, window=0, softcap=0.0)
        verdict = judge(kernels_of(package, size, head_dim), make_batch(shape, dtype, "cuda", number))
        wrong += [f"{shape}: {text}" for text in verdict.wrong]
    assert not wrong


def test_rows_of_padding_change_nothing(package: Candidate) -> None:
    """As in a captured step: more rows and tokens than the plan has, on the null block, with context 0."""
    shape = AttentionShape(torch.bfloat16, 8, 4, 64, usual_size(package), 0, 0.0, (9, 0))
    for rows in (((1, 700), (1, 3), (1, 257)), ((300, 300), (1, 900), (64, 500))):
        (inputs, *_) = make_inputs(Case("", rows), shape, Bounds(2048, 16, 2048))
        attend = ByPhase(package.decode, package.mixed)
        expected = torch_impl.paged_attention(**inputs)
        real, more = len(inputs["query"]), 5
        null = inputs["k_pool"].shape[0] - 1
        padded = dict(inputs)
        padded["query"] = torch.cat([inputs["query"], inputs["query"].new_zeros((more, 8, 64))])
        table = inputs["block_tables"]
        padded["block_tables"] = torch.cat([table, torch.full_like(table[:1], null).expand(more, -1)])
        starts = inputs["cu_query_lens"]
        padded["cu_query_lens"] = torch.cat([starts, starts[-1:].expand(more)])
        padded["context_lens"] = torch.cat([inputs["context_lens"], torch.zeros(more).int().cuda()])
        padded["max_query_len"] = 1 if real == len(rows) else len(padded["query"])
        assert relative_error(attend(**padded)[:real], expected) < 1e-2


@pytest.mark.parametrize("one_each", [True, False])
def test_a_captured_call_serves_other_lengths_and_tables(package: Candidate, one_each: bool) -> None:
    """Captured on the second batch's blocks with the shortest contexts, replayed on the first batch."""
    shape = AttentionShape(torch.bfloat16, 8, 4, 64, usual_size(package), 0, 0.0, (9, 0))
    rows = ((1, 2000), (1, 1), (1, 700), (1, 5)) if one_each else ((1, 1500), (229, 400), (1, 1))
    first, second, *_ = make_inputs(Case("", rows), shape, Bounds(512, 8, 4096))
    lens = sorted((queries for queries, _ in rows), reverse=True)
    static = dict(second)
    static["query"] = torch.randn_like(first["query"])
    static["cu_query_lens"] = torch.tensor([0, *lens]).cumsum(0).int().cuda()
    static["context_lens"] = torch.tensor(lens).int().cuda()
    attend, graph = ByPhase(package.decode, package.mixed), torch.cuda.CUDAGraph()
    attend(**static)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = attend(**static)
    for name in ("query", "block_tables", "cu_query_lens", "context_lens"):
        static[name].copy_(first[name])
    out.fill_(math.nan)
    graph.replay()
    assert relative_error(out, torch_impl.paged_attention(**first)) < 1e-2


def test_the_trial_accepts_it_and_measures(package: Candidate) -> None:
    size = usual_size(package)
    shape = AttentionShape(torch.bfloat16, 16, 8, 128, size, 0, 0.0, (9, 0))
    bounds = Bounds(2048, 256, 8192)
    triton = dispatch.select("triton", "cuda", torch.bfloat16, 128, size).paged_attention
    for cases, attend in (
        (decode_cases(shape, bounds), package.decode),
        (mixed_cases(shape, bounds), package.mixed),
    ):
        seconds = seconds_of(attend, cases, shape, bounds, triton)
        assert len(seconds) == 2
        assert all(0 < each < 0.01 for each in seconds)


def test_nan_in_a_block_that_is_loaded_whole_is_caught_by_the_trial() -> None:
    """Why flash-attn-4 is refused at block size 128: the trial sees what its manual says."""
    try:
        package = loaded(FLASH4)
    except BackendUnavailableError as error:
        pytest.skip(f"{FLASH4}: {error}")
    shape = AttentionShape(torch.bfloat16, 16, 8, 128, 128, 0, 0.0, (9, 0))
    bounds = Bounds(2048, 64, 8192)
    triton = dispatch.select("triton", "cuda", torch.bfloat16, 128, 128).paged_attention
    with pytest.raises(ValueError, match="differs by nan"):
        seconds_of(package.decode, decode_cases(shape, bounds), shape, bounds, triton)


@pytest.mark.parametrize("tiny", [SERVED, replace(SERVED, family="llama", heads=9, kv_heads=3)], ids=str)
def test_graphs_on_and_off_give_the_same_tokens(package: Candidate, tmp_path: Path, tiny: TinyShape) -> None:
    """bfloat16: the tokens of the same padded steps without graphs. A prefix hit is part of it."""
    folder, results = write_tiny_model(tmp_path / "m", tiny), []
    size = usual_size(package)
    for captured in (False, True):
        runner = make_runner(
            folder, "bfloat16", on="cuda", num_blocks=128, block_size=size, max_batch_tokens=600,
            max_batch_seqs=6, max_model_len=600, attend=ByPhase(package.decode, package.mixed),
        )  # fmt: skip
        runner.capture_graphs(captured=captured)
        crowd = [
            HandSequence(row, [3 + (7 * row + at) % 370 for at in range(1 + 90 * row)]) for row in range(5)
        ]
        planner = HandPlanner(128, size, seed=5)
        run(runner, planner, crowd, 6, 130)
        late = HandSequence(5, [*crowd[4].tokens[:256], 9, 8])
        planner.share(crowd[4], late, 256)
        run(runner, planner, [late, *crowd], 8, 130)
        outputs = [sequence.outputs for sequence in (*crowd, late)]
        runner.reset()
        results.append(outputs + steady_outputs(runner, 5))
    assert results[0] == results[1]
    assert sum(map(len, results[0])) > 50


def test_flash_by_name_and_auto_say_what_they_chose(package: Candidate, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m", SERVED)
    size = str(usual_size(package))
    flags = ["--model", str(folder), "--device", "cuda", "--dtype", "bfloat16", "--block-size", size]
    for backend in ("flash", "auto"):
        kernels = examine(read_settings([*flags, "--attention-backend", backend])).kernels
        choices = {choice.op: choice for choice in kernels.choices}
        for phase in PHASES:
            choice = choices[f"paged_attention_{phase}"]
            assert package.name in choice.why, choice
            assert "measured us" in choice.why
            assert choice.backend in ((FLASH2, FLASH4) if backend == "flash" else (FLASH2, FLASH4, "triton"))


@pytest.mark.parametrize("block_size", [16, 256])
def test_the_service_with_flash_by_name(processes: Processes, tmp_path: Path, block_size: int) -> None:
    """End to end over gRPC, with graphs, hits and chunks; bfloat16 flips tokens, so the bulk is compared."""
    try:
        loaded(FLASH4)
    except BackendUnavailableError as error:
        if block_size % 256:
            pytest.skip(f"{FLASH4}: {error}")
        try:
            loaded(FLASH2)
        except BackendUnavailableError as other:
            pytest.skip(f"{FLASH4}: {error}; {FLASH2}: {other}")
    plant = replace(
        tiny_plant("llama", tmp_path),
        model=write_tiny_model(tmp_path / "m", SERVED),
        device="cuda",
        dtype="bfloat16",
        block_size=block_size,
        flags=("--max-model-len", "512", "--attention-backend", "flash"),
    )
    reference, prompts = from_folder(plant.model, torch.float32), tiny_prompts()
    messages = [request(prompt, TINY_TOKENS) for prompt in prompts]
    outputs = asyncio.run(Runner(processes, plant).run(covering_settings()[0], messages)).outputs
    agreeing = [
        float((reference.logits(prompt, output).argmax(-1) == output).mean())
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    assert sum(agreeing) / len(agreeing) > 0.85

"""The worker with flash-attn 2 and flash-attn-4 on a CUDA device: graphs, the choice, the service.

Owns the verdicts on tokens; knows no kernel. Invariant: a package that is not installed skips its tests by
name.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpu_worker.config import read_settings
from gpu_worker.loading import examine
from paged_kernels.attention_backends import PACKAGES, PHASES, ByPhase, Candidate
from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.flash_impl.constraints import FLASH2, FLASH4
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
SERVED = TinyShape("qwen3", seed=51, heads=4, kv_heads=2, head_dim=64, tie=True)


def loaded(name: str) -> Candidate:
    return PACKAGES[name][1]()


@pytest.fixture(params=[FLASH2, FLASH4])
def package(request: pytest.FixtureRequest) -> Candidate:
    try:
        return loaded(request.param)
    except BackendUnavailableError as error:
        pytest.skip(f"{request.param}: {error}")


def usual_size(package: Candidate) -> int:
    return 256 if package.name == FLASH2 else 16


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

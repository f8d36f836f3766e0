"""n sequences of one prompt, and a recorded run on a live worker, through both processes with CUDA.

Owns the verdicts there; knows no kernel. Invariant: float32, with graphs.
"""

import asyncio
import json
from pathlib import Path

import pytest
import torch

from octavo.v1 import inference_pb2 as pb
from scheduler_svc.core.plan import branch_seed
from tests.e2e.metrics import scrape, total
from tests.e2e.processes import Processes, ServiceProcess
from tests.e2e.rig import prompt_of
from tests.e2e.service import Reply, Service, request
from tests.fault.test_record import replay
from tests.fixtures.tiny_model import TinyShape, write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
DEVICE = "cuda"
TOKENS, BRANCHES = 20, 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), TinyShape("qwen3", seed=22, tie=True))


def worker_of(processes: Processes, model: Path, *flags: str) -> ServiceProcess:
    sizes = (
        "--num-blocks",
        "256",
        "--block-size",
        "4",
        "--max-num-seqs",
        "16",
        "--max-num-batched-tokens",
        "128",
    )
    fixed = ("--device", DEVICE, "--dtype", "float32", "--max-model-len", "128", "--metrics-port", "0")
    listen = ("--listen", f"unix:{processes.folder}/worker.sock", "--swap-space", "0")
    return processes.start("worker", "gpu_worker", "--model", str(model), *listen, *fixed, *sizes, *flags)


def messages() -> list[pb.GenerateRequest]:
    """Prompts around block boundaries; greedy and seeded ones, two with a shared beginning."""
    shared = prompt_of(14, 3)
    prompts = [prompt_of(n, 5) for n in (1, 3, 4, 5, 21)] + [[*shared, 7], [*shared, 9, 11]]
    return [request(ids, TOKENS, temperature=float(i % 3 > 0), seed=40 + i) for i, ids in enumerate(prompts)]


async def singles_and_forks(address: str) -> tuple[list[list[list[int]]], list[Reply]]:
    """Each message alone with each derived seed; then all at once with n sequences."""
    async with Service(address) as service:
        await service.wait_ready(timeout=120)
        alone = []
        for message in messages():
            runs = []
            for branch in range(BRANCHES):
                single = pb.GenerateRequest.FromString(message.SerializeToString())
                single.sampling.seed = branch_seed(message.sampling.seed, branch)
                runs.append((await service.run(single)).tokens)
            alone.append(runs)
        forked = messages()
        for message in forked:
            message.n = BRANCHES
        return alone, await service.run_all(forked)


@pytest.mark.parametrize("kind", ["auto", "fp8_e4m3"])
def test_a14_each_branch_is_the_single_run_with_its_derived_seed(
    processes: Processes, model: Path, kind: str
) -> None:
    worker = worker_of(processes, model, "--kv-cache-dtype", kind)
    scheduler = processes.scheduler(model, worker.address, "--check-invariants", "every-step")
    alone, forked = asyncio.run(singles_and_forks(scheduler.address))
    for runs, reply in zip(alone, forked, strict=True):
        assert [reply.branches[branch] for branch in range(BRANCHES)] == runs
    assert len({tuple(run) for runs in alone for run in runs}) > len(alone) * 2, "seeds make a difference"
    samples = scrape(f"http://127.0.0.1:{scheduler.serving['metrics_port']}/metrics")
    assert total(samples, "octavo_kv_cow_copies_total") > 0
    assert total(samples, "octavo_invariant_violations_total") == 0


def test_a_recorded_run_gives_the_same_tokens_on_a_live_worker(processes: Processes, model: Path) -> None:
    worker = worker_of(processes, model)
    log = processes.folder / "flight.log"
    scheduler = processes.scheduler(model, worker.address, "--record", str(log), "--record-plans")

    async def serve() -> list[Reply]:
        async with Service(scheduler.address) as service:
            await service.wait_ready(timeout=120)
            return await service.run_all(messages() * 2)

    replies = asyncio.run(serve())
    assert scheduler.stop() == 0
    done = asyncio.run(replay(str(log), "--worker", worker.address, "--json"))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["difference"] is None
    assert report["worker"]["other"] == 0
    assert report["worker"]["equal"] == report["tokens"] == sum(len(reply.tokens) for reply in replies)

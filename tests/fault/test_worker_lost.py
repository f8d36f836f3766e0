"""A25 and the promise of the house: a killed, frozen or unreachable worker costs time and no token.

`octavo serve` runs a tiny model in float64, where no tie of logits can hide behind rounding.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from octavo.v1 import inference_pb2 as pb
from scheduler_svc.config import Settings
from tests.e2e.processes import Processes, ServiceProcess, children_of
from tests.e2e.rig import prompt_of, until
from tests.e2e.service import Reply, Service, request

STREAMS = 20
TOKENS = 100
pytestmark = pytest.mark.timeout(600)  # a test starts several workers, each importing PyTorch


@dataclass
class Stack:
    """`octavo serve`, and what its streams give when nothing happens to them."""

    process: ServiceProcess
    calm: list[list[int]]

    def worker_pid(self) -> int | None:
        found = children_of(self.process.pid, "gpu_worker")
        return found[0] if found else None


def streams() -> list[pb.GenerateRequest]:
    """Greedy and seeded ones in turn, of unlike lengths; some share a prefix."""
    shared = prompt_of(19, 5)
    prompts = [
        shared + prompt_of(3 + i, i) if i % 4 == 0 else prompt_of(5 + 2 * i, i) for i in range(STREAMS)
    ]
    heat = [0.0 if i % 2 else 1.0 for i in range(STREAMS)]
    return [
        request(p, TOKENS, temperature=t, seed=i) for i, (p, t) in enumerate(zip(prompts, heat, strict=True))
    ]


@pytest.fixture(scope="module")
def stack(shared_processes: Processes, tiny_llama: Path) -> Stack:
    # 20 streams need about 620 blocks of 4 tokens in all: a pool of 300 makes them preempt each other
    flags = ["--dtype", "float64", "--block-size", "4", "--num-blocks", "300", "--max-model-len", "256"]
    flags += ["--scheduler-arg=--worker-grace-seconds=600"]  # a slow machine takes long to start a worker
    process = shared_processes.serve(tiny_llama, *flags)
    return Stack(process, asyncio.run(_calm(process)))


async def _calm(process: ServiceProcess) -> list[list[int]]:
    async with Service(process.address) as service:
        await service.wait_ready(timeout=120)
        return [reply.tokens for reply in await service.run_all(streams())]


async def run_through(stack: Stack, trouble: Callable[[Service], Awaitable[None]]) -> list[Reply]:
    """All streams at once, with trouble once each has told a few tokens; the tokens are the calm run's."""
    async with Service(stack.process.address) as service:
        replies = [Reply() for _ in range(STREAMS)]
        tasks = [
            asyncio.create_task(service.run(message, reply))
            for message, reply in zip(streams(), replies, strict=True)
        ]
        await until(lambda: all(len(reply.tokens) >= 3 for reply in replies), 100)
        assert not all(task.done() for task in tasks)
        await trouble(service)
        await asyncio.gather(*tasks)
        assert [reply.tokens for reply in replies] == stack.calm
        assert {reply.reason for reply in replies} == {"LENGTH"}
        await service.wait_idle()
    return replies


async def kill_worker(stack: Stack) -> int:
    pid = stack.worker_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def test_a_worker_killed_under_20_streams_loses_nothing(stack: Stack) -> None:
    async def trouble(service: Service) -> None:
        await kill_worker(stack)
        await service.wait_ready(False)

    replies = await run_through(stack, trouble)
    assert sum(reply.preemptions for reply in replies) > 0  # some were not even running when it died


async def test_a_worker_killed_twice_loses_nothing(stack: Stack) -> None:
    async def trouble(service: Service) -> None:
        for _ in range(2):
            dead = await kill_worker(stack)
            await until(lambda dead=dead: stack.worker_pid() not in (None, dead))  # type: ignore[misc]
        await service.wait_ready(timeout=120)

    await run_through(stack, trouble)


async def test_a25_a_frozen_worker_is_noticed_and_goes_on_when_it_thaws(stack: Stack) -> None:
    """The default patience and the second until the next look make up A25's 5 s."""
    assert Settings.model_fields["worker_liveness_seconds"].default + 1 <= 5

    async def trouble(service: Service) -> None:
        pid = stack.worker_pid()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            await service.wait_ready(False)
        finally:
            os.kill(pid, signal.SIGCONT)

    await run_through(stack, trouble)


async def test_a25_a_worker_killed_idle_comes_back(stack: Stack) -> None:
    async with Service(stack.process.address) as service:
        before = (await service.stats()).worker_epoch
        await kill_worker(stack)
        await service.wait_ready(False)
        waiting = asyncio.create_task(service.run(streams()[1]))  # taken in the grace period, served after it
        await service.wait_ready(timeout=120)
        assert (await waiting).tokens == stack.calm[1]
        assert (await service.stats()).worker_epoch != before


async def test_a25_a_worker_whose_supervisor_is_killed_ends_too(
    processes: Processes, tiny_llama: Path
) -> None:
    process = processes.serve(tiny_llama, "--num-blocks", "32")
    await until(lambda: len(children_of(process.pid, "gpu_worker")) == 1)
    children = children_of(process.pid, "-m")
    assert len(children) >= 2
    process.kill()
    await until(lambda: not any(_alive(pid) for pid in children))


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or before it was read
        return False
    return state != "Z"

"""A real scheduler process in front of a fake worker that lives in the test.

Owns their pairing; knows no scenario. Invariant: a test ends with the fake worker having seen no broken rule,
unless the test took `violations` away itself.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from octavo.v1 import inference_pb2 as pb
from tests.e2e.metrics import scrape
from tests.e2e.processes import Processes, ServiceProcess
from tests.e2e.service import PATIENCE, Reply, Service
from tests.fakes.fake_worker import FakeSettings, FakeWorker
from tests.fakes.simulated_kv import expected_tokens

VOCAB = 384
SMALL = FakeSettings(num_blocks=64, block_size=4, vocab_size=VOCAB, max_batch_tokens=64, max_batch_seqs=16)
PATIENT = ("--worker-liveness-seconds", "60")
T = TypeVar("T")


@dataclass
class SchedulerSeat:
    """A running scheduler and the address at which it looks for its worker."""

    process: ServiceProcess
    worker_address: str

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.process.serving['metrics_port']}/metrics"


@dataclass
class Rig:
    """What a wire test talks to."""

    seat: SchedulerSeat
    service: Service
    fake: FakeWorker
    answers_before: float = 0.0
    """That the scheduler had applied when this worker came."""

    async def begin(self, message: pb.GenerateRequest) -> tuple[Reply, "asyncio.Task[Reply]"]:
        """A request whose first token has arrived, or which has ended."""
        reply = Reply()
        task = asyncio.create_task(self.service.run(message, reply))
        await until(lambda: bool(reply.tokens) or task.done())
        return reply, task

    async def together(self, calls: Iterable[Coroutine[Any, Any, T]]) -> "list[asyncio.Task[T]]":
        """Calls of one request each, all of which the scheduler has before the worker answers a step."""
        self.fake.hold()
        tasks = [asyncio.create_task(call) for call in calls]
        await self.until_live(len(tasks))
        await self.fake.release()
        return tasks

    async def until_live(self, count: int) -> None:
        """Waits until the scheduler has so many requests."""
        async with asyncio.timeout(PATIENCE):
            while len({one.request_id for one in (await self.service.stats()).requests}) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def hold(self, *, after: int = 0) -> None:
        """Lets so many more answers go and then none, and waits until the scheduler has applied all that went
        and sent what it sends without more. What clients were told of them may still be on its way.
        """
        self.fake.hold()
        due = self.fake.answers + after
        await self.fake.release(after)
        await until(lambda: self.fake.answers >= due and self._answers_applied() == self.fake.answers)
        await self.service.stats()  # answered in a turn of the engine after the one that applied the last

    def _answers_applied(self) -> float:
        return scrape(self.seat.metrics_url)["octavo_worker_rpc_seconds_count"] - self.answers_before

    async def abort(self, *request_ids: str) -> list[str]:
        """The ids that were live."""
        answer = await self.service.inference.Abort(pb.AbortRequest(request_ids=request_ids))
        return list(answer.aborted_request_ids)


def seat_scheduler(processes: Processes, model: Path, *flags: str) -> SchedulerSeat:
    """Starts a scheduler that waits for a worker at a socket of its own, and long for one that is silent: a
    fake one is silent while its test works.
    """
    address = f"unix:{processes.folder}/worker-{len(processes.started)}.sock"
    return SchedulerSeat(processes.scheduler(model, address, *PATIENT, *flags), address)


@asynccontextmanager
async def rig_at(seat: SchedulerSeat, settings: FakeSettings = SMALL) -> AsyncIterator[Rig]:
    """A fresh fake worker for the scheduler, both ready."""
    fake = FakeWorker(settings)
    await fake.start(seat.worker_address)
    async with Service(seat.process.address) as service:
        try:
            await service.wait_ready()
            answers = scrape(seat.metrics_url)["octavo_worker_rpc_seconds_count"]
            yield Rig(seat, service, fake, answers)
            assert not fake.violations
        finally:
            await fake.die()
            await service.wait_ready(False)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Random ids without the special ones; unlike for each length and seed."""
    return random.Random(f"{seed}-{length}").choices(range(3, VOCAB), k=length)


def wanted(prompt: list[int], n: int, temperature: float = 0.0, seed: int = 0) -> list[int]:
    """The tokens that a right service with a fake worker gives."""
    return expected_tokens(prompt, n, VOCAB, temperature, seed)


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Polls the condition. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a test looks from outside
            await asyncio.sleep(0.005)

"""A load in which everything happens that the panels show: real scheduler, real worker, tiny model.

Owns the requests; looks at no metric. Invariant: its pool is so small that prefixes are hit, blocks are
evicted and sequences are preempted within seconds.

Two kinds of traffic, after the patterns of serving traces: chats whose turns repeat a long prefix, and short
requests that share nothing.
"""

import asyncio
import contextlib
import random
from pathlib import Path

import grpc

from octavo.v1 import inference_pb2 as pb
from tests.e2e.processes import Processes, ServiceProcess
from tests.e2e.service import Service, request

VOCAB = 256
BLOCKS = 52


def start(processes: Processes, model: Path) -> tuple[ServiceProcess, ServiceProcess]:
    """Scheduler and worker."""
    worker = processes.worker(
        model, "127.0.0.1:0", "--num-blocks", str(BLOCKS), "--block-size", "16", "--max-num-seqs", "8"
    )
    scheduler = processes.scheduler(
        model, worker.address, "--max-num-seqs", "8", "--max-queue-requests", "64"
    )
    return scheduler, worker


class Load:
    """Runs from `async with` to its end."""

    def __init__(self, address: str) -> None:
        self._service = Service(address)
        self._chance = random.Random(7)
        self._system = self._ids(64)

    async def __aenter__(self) -> "Load":
        await self._service.wait_ready()
        self._tasks = [asyncio.create_task(self._chat()) for _ in range(5)]
        self._tasks += [asyncio.create_task(self._short()) for _ in range(4)]
        self._tasks.append(asyncio.create_task(self._trouble()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await task
        await self._service.channel.close()

    def _ids(self, count: int) -> list[int]:
        return self._chance.choices(range(10, VOCAB), k=count)

    async def _chat(self) -> None:
        while True:
            history = [*self._system, *self._ids(20)]
            for _ in range(3):
                reply = await self._service.generate(history, self._chance.randrange(20, 60))
                history = [*history, *reply.tokens, *self._ids(5)]

    async def _short(self) -> None:
        while True:
            await self._service.generate(
                self._ids(self._chance.randrange(5, 60)), self._chance.randrange(5, 90)
            )

    async def _trouble(self) -> None:
        """Refused, aborted, and more at once than there are rows."""
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._service.generate([1], 0)
            burst = [
                asyncio.create_task(self._service.generate(self._ids(30), 80, request_id=f"b{i}"))
                for i in range(6)
            ]
            await asyncio.sleep(0.5)
            await self._service.inference.Abort(pb.AbortRequest(request_ids=["b0", "b1"]))
            await asyncio.gather(*burst)
            done = request(self._ids(4), 3)
            await self._service.run(done)
            await asyncio.sleep(0.3)

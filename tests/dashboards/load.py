"""The loads under which the dashboards are looked at: the real services, a tiny model, a host tier.

Owns the services' sizes and the clients' life; looks at no metric. Invariant: the pool is so small that
prefixes are hit, blocks are evicted and sequences are preempted within seconds, and a load goes on until it
is left.

Two kinds of traffic, of recorded data (tests/data): sessions of coding agents (WEKA trace) over gRPC, and
chats of MT-bench questions over HTTP. Beside them a little trouble: refusals, aborts, a client that hangs up.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx2

from octavo.v1 import inference_pb2 as pb
from tests.dashboards.agents import SESSIONS, play_session
from tests.dashboards.chats import Chats
from tests.e2e.processes import Processes, ServiceProcess
from tests.e2e.service import PATIENCE, Service

BLOCKS = 100
ROWS = "12"
CHATTERS = 3
SPREAD_SECONDS = 2.0
"""Between the begins of two sessions of agents."""


@dataclass
class Services:
    """What runs. Every port is one that Prometheus scrapes."""

    scheduler: ServiceProcess
    worker: ServiceProcess
    gateway: ServiceProcess

    @property
    def ports(self) -> dict[str, int]:
        """By the name of the job, as in deploy/prometheus.yml."""
        return {
            "scheduler": int(self.scheduler.serving["metrics_port"]),
            "worker": int(self.worker.serving["metrics_port"]),
            "gateway": int(self.gateway.address.rpartition(":")[2]),
        }


def start(processes: Processes, model: Path) -> Services:
    """A worker with a small pool and a host tier, a scheduler that swaps, a gateway."""
    worker = processes.worker(
        model, "127.0.0.1:0", "--num-blocks", str(BLOCKS), "--block-size", "16", "--max-num-seqs", ROWS,
        "--swap-space", "0.005",
    )  # fmt: skip
    scheduler = processes.scheduler(
        model, worker.address, "--max-num-seqs", ROWS, "--max-queue-requests", "64", "--preemption", "swap"
    )
    return Services(scheduler, worker, processes.gateway(scheduler.address))


class Load:
    """Runs from `async with` to its end."""

    def __init__(self, services: Services) -> None:
        self._service = Service(services.scheduler.address)
        self._http = httpx2.AsyncClient(base_url=f"http://{services.gateway.address}", timeout=60)

    async def __aenter__(self) -> "Load":
        await self._service.wait_ready()
        chats = Chats(self._http)
        work = [self._agents(number) for number in range(len(SESSIONS))]
        work += [chats.talk(number) for number in range(CHATTERS)]
        work += [self._trouble(), chats.hang_up()]
        self._tasks = [asyncio.create_task(one) for one in work]
        return self

    async def __aexit__(self, *_: object) -> None:
        ended = [task for task in self._tasks if task.done()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()
        await self._service.channel.close()
        for task in ended:
            task.result()  # none ends by itself but by a failure

    async def _agents(self, number: int) -> None:
        await asyncio.sleep(number * SPREAD_SECONDS)
        while True:
            await play_session(self._service, SESSIONS[number])

    async def _trouble(self) -> None:
        """Refused, and aborted while it runs or waits: as soon as it is there, with long answers to come."""
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._service.generate([1], 0)
            prompts = [list(range(10 + i, 60 + i)) for i in range(4)]
            burst = [
                asyncio.create_task(self._service.generate(prompt, 400, request_id=f"b{i}"))
                for i, prompt in enumerate(prompts)
            ]
            try:
                await self._until_live({"b0", "b1"})
                await self._service.inference.Abort(pb.AbortRequest(request_ids=["b0", "b1"]))
                await asyncio.gather(*burst)
            finally:
                for one in burst:
                    one.cancel()
            await asyncio.sleep(2)

    async def _until_live(self, request_ids: set[str]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not request_ids <= {one.request_id for one in (await self._service.stats()).requests}:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

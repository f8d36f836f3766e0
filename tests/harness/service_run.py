"""The real service, as processes, under one setting.

Owns the pairing of a scheduler with a worker and the kill midway; knows no reference. Invariant: the
workers of calm settings are shared by pool size, and every process belongs to the given `Processes`.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from octavo.v1 import inference_pb2 as pb
from tests.e2e.processes import Processes, ServiceProcess
from tests.e2e.service import Reply, Service
from tests.harness.settings import Setting

WORKER_MODULE = "gpu_worker"


@dataclass(frozen=True)
class Plant:
    """What a family runs on. Pools in blocks; the small one holds any one sequence, but not three.

    chunk: prefill tokens of a row in a step when chunked.
    """

    model: Path
    dtype: str
    block_size: int
    ample_blocks: int
    small_blocks: int
    chunk: int
    flags: tuple[str, ...] = ()
    device: str = "cpu"


@dataclass
class Outcome:
    """Tokens of each request in order, and what shows that the setting was real."""

    setting: Setting
    outputs: list[list[int]]
    preemptions: int
    cached: int
    kills: int
    seconds: float
    replies: list[Reply] = field(default_factory=list)


@dataclass
class Runner:
    """Runs settings one after the other. module: the worker's; the self-test swaps in a corrupting one."""

    processes: Processes
    plant: Plant
    module: str = WORKER_MODULE
    _workers: dict[bool, ServiceProcess] = field(default_factory=dict)

    async def run(self, setting: Setting, requests: Sequence[pb.GenerateRequest], rounds: int = 1) -> Outcome:
        """All requests, `rounds` times over; later rounds hit what earlier ones left in the cache."""
        started = time.monotonic()
        worker = self._worker(setting.small_pool)
        flags = setting.scheduler_flags(self.plant.chunk)
        scheduler = self.processes.scheduler(self.plant.model, worker.address, *flags)
        try:
            async with Service(scheduler.address) as service:
                await service.wait_ready(timeout=120)
                replies = await self._ask(service, setting, requests, rounds)
        finally:
            scheduler.stop()
        return Outcome(
            setting,
            [reply.tokens for reply in replies],
            sum(reply.preemptions for reply in replies),
            sum(reply.cached for reply in replies),
            int(setting.killed),
            time.monotonic() - started,
            replies,
        )

    async def _ask(
        self, service: Service, setting: Setting, requests: Sequence[pb.GenerateRequest], rounds: int
    ) -> list[Reply]:
        replies = [Reply() for _ in range(rounds * len(requests))]
        killing = (
            asyncio.create_task(self._kill_midway(setting, requests, replies)) if setting.killed else None
        )
        for first in range(0, len(replies), len(requests)):
            pairs = list(zip(requests, replies[first : first + len(requests)], strict=True))
            if setting.crowd:
                await asyncio.gather(*(service.run(message, reply) for message, reply in pairs))
            else:
                for message, reply in pairs:
                    await service.run(message, reply)
        if killing is not None:
            await killing
        return replies

    async def _kill_midway(
        self, setting: Setting, requests: Sequence[pb.GenerateRequest], replies: Sequence[Reply]
    ) -> None:
        """kill -9 once a third of the first round's tokens are out; another worker then takes the address."""
        due = sum(message.stopping.max_tokens for message in requests) // 3
        while sum(len(reply.tokens) for reply in replies) < due:  # noqa: ASYNC110  the replies fill up elsewhere
            await asyncio.sleep(0.002)
        await asyncio.to_thread(self._replace_worker, setting.small_pool)

    def _replace_worker(self, small_pool: bool) -> None:
        self._workers.pop(small_pool).kill()
        self._worker(small_pool)

    def _worker(self, small_pool: bool) -> ServiceProcess:
        if small_pool not in self._workers:
            plant = self.plant
            blocks = plant.small_blocks if small_pool else plant.ample_blocks
            address = f"unix:{self.processes.folder}/{'small' if small_pool else 'ample'}.sock"
            flags = ["--block-size", str(plant.block_size), "--num-blocks", str(blocks), *plant.flags]
            fixed = [
                "--device",
                plant.device,
                "--dtype",
                plant.dtype,
                "--threads",
                "1",
                "--metrics-port",
                "0",
            ]
            arguments = [self.module, "--model", str(plant.model), "--listen", address, *fixed, *flags]
            self._workers[small_pool] = self.processes.start("worker", *arguments)
        return self._workers[small_pool]

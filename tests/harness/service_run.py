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
from tests.e2e.metrics import scrape
from tests.e2e.processes import Processes, ServiceProcess
from tests.e2e.service import Reply, Service
from tests.harness.settings import Setting

WORKER_MODULE = "gpu_worker"


@dataclass(frozen=True)
class Plant:
    """What a family runs on. Pools in blocks; the small one holds any one sequence, but not three.

    chunk: prefill tokens of a row in a step when chunked. swap_space: GiB of the host tier.
    """

    model: Path
    dtype: str
    block_size: int
    ample_blocks: int
    small_blocks: int
    chunk: int
    flags: tuple[str, ...] = ()
    device: str = "cpu"
    swap_space: float = 0.25


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
    swapped_in: int = 0


@dataclass
class Runner:
    """Runs settings one after the other. module: the worker's; the self-test swaps in a corrupting one.
    kill_after: tokens of the first round before a worker is killed; 0: a third of all that may come.
    """

    processes: Processes
    plant: Plant
    module: str = WORKER_MODULE
    kill_after: int = 0
    _workers: dict[tuple[bool, bool], ServiceProcess] = field(default_factory=dict)

    async def run(self, setting: Setting, requests: Sequence[pb.GenerateRequest], rounds: int = 1) -> Outcome:
        """All requests, `rounds` times over; later rounds hit what earlier ones left in the cache."""
        started = time.monotonic()
        worker = self._worker(setting)
        flags = setting.scheduler_flags(self.plant.chunk)
        scheduler = self.processes.scheduler(self.plant.model, worker.address, *flags)
        try:
            async with Service(scheduler.address) as service:
                await service.wait_ready(timeout=120)
                replies = await self._ask(service, setting, requests, rounds)
            samples = await asyncio.to_thread(scrape, _metrics_url(scheduler))
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
            int(samples['octavo_kv_block_moves_total{direction="in"}']),
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
        """kill -9 once enough of the first round's tokens are out; another worker then takes the address."""
        due = self.kill_after or sum(message.stopping.max_tokens for message in requests) // 3
        while sum(len(reply.tokens) for reply in replies) < due:  # noqa: ASYNC110  the replies fill up elsewhere
            await asyncio.sleep(0.002)
        await asyncio.to_thread(self._replace_worker, setting)

    def _replace_worker(self, setting: Setting) -> None:
        self._workers.pop((setting.small_pool, setting.swaps)).kill()
        self._worker(setting)

    def _worker(self, setting: Setting) -> ServiceProcess:
        kind = (setting.small_pool, setting.swaps)
        if kind not in self._workers:
            plant = self.plant
            blocks = plant.small_blocks if setting.small_pool else plant.ample_blocks
            name = ("small" if setting.small_pool else "ample") + ("-swap" if setting.swaps else "")
            address = f"unix:{self.processes.folder}/{name}.sock"
            flags = ["--block-size", str(plant.block_size), "--num-blocks", str(blocks), *plant.flags]
            flags += ["--swap-space", str(plant.swap_space if setting.swaps else 0)]
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
            self._workers[kind] = self.processes.start("worker", *arguments)
        return self._workers[kind]


def _metrics_url(scheduler: ServiceProcess) -> str:
    return f"http://127.0.0.1:{scheduler.serving['metrics_port']}/metrics"

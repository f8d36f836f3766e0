"""A09: a worker that comes back with other weights: nothing cached survives, output is the new model's."""

import asyncio
from pathlib import Path

import grpc
import pytest

from octavo.errors import reason_of
from tests.e2e.processes import Processes
from tests.e2e.rig import prompt_of, until
from tests.e2e.service import Reply, Service, request
from tests.fixtures.tiny_model import TinyShape, write_tiny_model

FLAGS = ("--dtype", "float64", "--num-blocks", "600", "--block-size", "4")
PROMPT = prompt_of(30, 1)
LONG = 2000
"""Tokens that take seconds: the answer has not ended when its worker is killed at the first of them."""


@pytest.mark.timeout(600)
async def test_a09_other_weights_void_the_cache_and_end_what_has_told_tokens(
    processes: Processes, tiny_llama: Path, tmp_path: Path
) -> None:
    other = write_tiny_model(tmp_path / "other", TinyShape(seed=99))
    address = f"unix:{processes.folder}/worker.sock"
    scheduler = processes.scheduler(tiny_llama, address, "--worker-grace-seconds", "600")
    worker = processes.worker(tiny_llama, address, *FLAGS)
    async with Service(scheduler.address) as service:
        await service.wait_ready(timeout=120)
        old = [await service.generate(PROMPT, 12) for _ in range(2)]
        assert old[1].cached > 0
        reply = Reply()
        running = asyncio.create_task(service.run(request(prompt_of(8, 2), LONG), reply))
        await until(lambda: bool(reply.tokens))
        worker.kill()
        queued = asyncio.create_task(service.run(request(PROMPT, 12)))
        await asyncio.to_thread(processes.worker, other, address, *FLAGS)
        new = await queued
        assert new.cached == 0
        assert new.tokens != old[0].tokens
        assert (await service.generate(PROMPT, 12, use_prefix_cache=False)).tokens == new.tokens
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await running
        assert ended.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert reason_of(ended.value) == "MODEL_CHANGED"

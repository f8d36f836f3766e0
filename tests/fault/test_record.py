"""A service in trouble, recorded: its log replays without a difference, alone and on a live worker."""

import asyncio
import json
import random
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.v1 import inference_pb2 as pb
from tests.e2e.metrics import scrape, total
from tests.e2e.processes import REPOSITORY, Processes, child_environment
from tests.e2e.rig import SMALL, prompt_of, rig_at, seat_scheduler, until, wanted
from tests.e2e.service import Service, request
from tests.fakes.fake_worker import FakeSettings, FakeWorker
from tests.fault.test_random_trouble import make_trouble, one

TINY_POOL = replace(SMALL, num_blocks=14)
TIGHT_POOL = replace(SMALL, num_blocks=18)
"""Holds one request of `one` of whatever length, 30 + 40 tokens, and hardly two."""
PATIENT = ("--worker-liveness-seconds", "60", "--worker-grace-seconds", "600")
"""A worker that is slow is not taken for lost, nor one that takes long to come back: sessions are counted."""


async def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`octavo replay ARGUMENTS`."""
    command = [sys.executable, "-m", "octavo_client.cli", "replay", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=REPOSITORY, env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    return subprocess.CompletedProcess(command, process.returncode or 0, out.decode(), err.decode())


def messages(count: int) -> list[pb.GenerateRequest]:
    """Greedy and seeded ones; some share a prefix."""
    shared = prompt_of(9, 3)
    prompts = [shared + prompt_of(2 + i % 5, i) if i % 2 else prompt_of(3 + i % 11, i) for i in range(count)]
    return [request(p, 12, temperature=float(i % 3 == 0), seed=i) for i, p in enumerate(prompts)]


async def record(processes: Processes, model: Path, *flags: str) -> Path:
    """The log of a service whose worker is in trouble all the time."""
    log = processes.folder / "flight.log"
    seat = await asyncio.to_thread(
        seat_scheduler, processes, model, "--record", str(log), "--check-invariants", "every-step", *flags
    )
    draw = random.Random(11)
    async with rig_at(seat, TIGHT_POOL) as rig:
        rig.fake.step_delay = 0.001
        ends = asyncio.gather(*(one(rig, number) for number in range(25)))
        for _ in range(12):
            await asyncio.sleep(draw.random() * 0.12)
            await make_trouble(rig, draw)
        await rig.service.wait_ready()
        await ends
        await rig.service.wait_idle()
        samples = await asyncio.to_thread(scrape, seat.metrics_url)
        assert total(samples, "octavo_invariant_violations_total") == 0
    assert await asyncio.to_thread(seat.process.stop) == 0
    return log


async def test_a_service_in_constant_trouble_replays_without_a_difference(
    processes: Processes, tiny_llama: Path
) -> None:
    log = await record(processes, tiny_llama)
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    done = await replay(str(log), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["difference"] is None
    assert report["ended"]
    assert report["sessions"] > 1
    assert report["requests"] == 25
    said = (await replay(str(log))).stdout
    assert "every plan is as recorded" in said

    cut = log.with_name("cut.log")
    cut.write_bytes(log.read_bytes()[:-7])
    torn = await replay(str(cut))
    assert torn.returncode == 0
    assert "the log was cut off" in torn.stdout

    log.write_bytes(log.read_bytes()[: len(log.read_bytes()) // 2] + b"?" + log.read_bytes()[1000:])
    damaged = await replay(str(log))
    assert damaged.returncode == 3
    assert "at byte" in damaged.stderr
    assert (await replay(str(log.with_name("none.log")))).returncode == 3


async def recorded_run(processes: Processes, model: Path, settings: FakeSettings) -> Path:
    """The log of a quiet service, with one lost worker in between."""
    log = processes.folder / "quiet.log"
    seat = await asyncio.to_thread(seat_scheduler, processes, model, "--record", str(log), "--record-plans")
    async with rig_at(seat, settings) as rig:
        replies = await rig.service.run_all(messages(12))
        assert replies[1].tokens == wanted(list(messages(12)[1].token_ids.ids), 12)
        await rig.fake.restart()
        await until(lambda: len(rig.fake.sessions) == 2)
        await rig.service.wait_ready()
        await rig.service.run_all(messages(6))
    assert await asyncio.to_thread(seat.process.stop) == 0
    return log


async def test_a_log_runs_on_a_live_worker_and_differing_tokens_are_named(
    processes: Processes, tiny_llama: Path
) -> None:
    log = await recorded_run(processes, tiny_llama, TINY_POOL)
    fake = FakeWorker(TINY_POOL)
    address = await fake.start()
    try:
        same = await replay(str(log), "--worker", address, "--json")
        assert same.returncode == 0, same.stdout + same.stderr
        report = json.loads(same.stdout)
        assert report["worker"]["other"] == 0
        assert report["worker"]["equal"] == report["tokens"] == 18 * 12
        assert len(fake.sessions) == report["sessions"] == 2
        assert not fake.violations

        prompt = list(messages(12)[1].token_ids.ids)
        fake.script(prompt, [*wanted(prompt, 3), 7, *wanted(prompt, 12)[4:]])
        other = await replay(str(log), "--worker", address)
        assert other.returncode == 1
        assert "output token 4: recorded" in other.stdout
        assert "the worker gives 7" in other.stdout
        assert "every plan is as recorded" in other.stdout
        assert not fake.violations
    finally:
        await fake.die()


@pytest.mark.timeout(600)
async def test_a_log_of_a_real_worker_runs_on_another_with_the_same_tokens(
    processes: Processes, tiny_llama: Path
) -> None:
    """Greedy and seeded rows of a tiny model in float64, in a small pool, the worker killed once."""
    log = processes.folder / "real.log"
    pool = ["--dtype", "float64", "--num-blocks", "20", "--block-size", "4", "--max-model-len", "64"]
    address = f"unix:{processes.folder}/real.sock"
    worker = await asyncio.to_thread(processes.worker, tiny_llama, address, *pool)
    seat = await asyncio.to_thread(processes.scheduler, tiny_llama, address, "--record", str(log), *PATIENT)
    async with Service(seat.address) as service:
        await service.wait_ready()
        running = asyncio.create_task(service.run_all(messages(10)))
        await until(lambda: log.stat().st_size > 4000)
        await asyncio.to_thread(worker.kill)
        await asyncio.to_thread(processes.worker, tiny_llama, address, *pool)
        replies = await running
        await service.wait_ready()
    assert await asyncio.to_thread(seat.stop) == 0
    other = f"unix:{processes.folder}/other.sock"
    await asyncio.to_thread(processes.worker, tiny_llama, other, *pool)
    done = await replay(str(log), "--worker", other, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["sessions"] == 2
    assert (report["worker"]["other"], report["worker"]["left_out"]) == (0, 0)
    assert report["worker"]["equal"] >= sum(len(reply.tokens) for reply in replies) == 120


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_blocks": 13}, "num_blocks: the log's plans need 14"),
        ({"block_size": 8}, "block_size: the log's"),
    ],
)
async def test_a_worker_that_cannot_run_the_log_is_refused(
    processes: Processes, tiny_llama: Path, changed: dict[str, int], said: str
) -> None:
    log = await recorded_run(processes, tiny_llama, TINY_POOL)
    fake = FakeWorker(replace(TINY_POOL, **changed))  # type: ignore[arg-type]
    address = await fake.start()
    done = await replay(str(log), "--worker", address)
    await fake.die()
    assert done.returncode == 1
    assert said in done.stderr


async def test_a_recording_that_cannot_begin_stops_the_start(processes: Processes, tiny_llama: Path) -> None:
    log = str(processes.folder / "none" / "log")
    process = await asyncio.to_thread(
        processes.scheduler, tiny_llama, "127.0.0.1:1", "--record", log, wait=False
    )
    assert await asyncio.to_thread(process.popen.wait, 60) == 2
    assert log in process.log_end()

"""A01, A25, A26 all at once: a worker in trouble every few milliseconds costs time, and no wrong token."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, wanted
from tests.e2e.service import Reply, request
from tests.fakes.faults import FaultKind

REQUESTS = 40
MAY_FAIL = (FaultKind.REFUSE, FaultKind.FAIL_ROW, FaultKind.LACK_TOKEN, FaultKind.RAGGED_BYTES)
MUST_NOT_FAIL = (FaultKind.REPEAT, FaultKind.REORDER, FaultKind.FUTURE_STEP, FaultKind.OTHER_SESSION)


@pytest.fixture(scope="module", params=["1", "2", "3"])
def seat(request: pytest.FixtureRequest, shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama, "--depth", request.param)


async def one(rig: Rig, number: int) -> str:
    """A request that comes at a random moment; some are aborted. Returns how it ended."""
    draw = random.Random(number)
    await asyncio.sleep(draw.random())
    prompt, n = prompt_of(draw.randint(1, 30), number % 5), draw.randint(1, 40)
    temperature, reply = float(number % 2), Reply()
    message = request(prompt, n, temperature=temperature, seed=number, request_id=f"r{number}")
    task = asyncio.create_task(rig.service.run(message, reply))
    if number % 7 == 0:
        await asyncio.sleep(draw.random() * 0.5)
        await rig.abort(f"r{number}")
    await task
    assert reply.tokens == wanted(prompt, n, temperature, number)[: len(reply.tokens)]
    assert len(reply.tokens) == n or reply.reason in ("ABORTED", "ERROR")
    return reply.reason


async def make_trouble(rig: Rig, draw: random.Random) -> None:
    match draw.randrange(5):
        case 0:
            await rig.fake.break_stream()
        case 1:
            sizes = draw.choice([(64, 4), (90, 3), (30, 16)])
            await rig.fake.restart(replace(SMALL, num_blocks=sizes[0], block_size=sizes[1]))
        case 2:
            rig.fake.inject(draw.choice(MUST_NOT_FAIL))
        case 3:
            rig.fake.inject(draw.choice(MAY_FAIL))
        case 4:
            rig.fake.hold()
            await asyncio.sleep(draw.random() * 0.05)
            await rig.fake.release()


async def test_a_worker_in_constant_trouble_gives_no_wrong_token(seat: SchedulerSeat) -> None:
    draw = random.Random(5)
    async with rig_at(seat) as rig:
        rig.fake.step_delay = 0.001
        ends = asyncio.gather(*(one(rig, number) for number in range(REQUESTS)))
        for _ in range(25):
            await asyncio.sleep(draw.random() * 0.15)
            await make_trouble(rig, draw)
        await rig.service.wait_ready()
        reasons = await ends
        assert "LENGTH" in reasons
        stats = await rig.service.wait_idle()
        assert stats.free_blocks + stats.evictable_blocks == stats.num_blocks

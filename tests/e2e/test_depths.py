"""Depths 1 to 3 give the same tokens under random schedules, pools, aborts and stops."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.e2e.processes import Processes
from tests.e2e.rig import VOCAB, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, wanted
from tests.e2e.service import Reply, request
from tests.fakes.fake_worker import FakeSettings


@pytest.fixture(scope="module", params=[1, 2, 3])
def seat(request: pytest.FixtureRequest, shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama, "--depth", str(request.param))


def until_stop(tokens: list[int], stop: int) -> list[int]:
    return tokens[: tokens.index(stop) + 1] if stop in tokens else tokens


async def one(rig: Rig, draw: random.Random, number: int) -> None:
    """A random request, checked against the pure function: whole, stopped, or aborted somewhere."""
    await asyncio.sleep(draw.random() * 0.3)
    length, n, stop = draw.randint(1, 40), draw.randint(1, 40), draw.randrange(3, VOCAB)
    prompt = prompt_of(length, draw.randint(0, 3))
    temperature, seed = draw.choice([(0.0, 0), (1.0, number)])
    full = until_stop(wanted(prompt, n, temperature, seed), stop)
    message = request(
        prompt, n, temperature=temperature, seed=seed, stop_token_ids=[stop], request_id=f"r{number}",
        priority=draw.randint(-1, 1),
    )  # fmt: skip
    reply = Reply()
    task = asyncio.create_task(rig.service.run(message, reply))
    if draw.random() < 0.2:
        await asyncio.sleep(draw.random() * 0.2)
        await rig.abort(f"r{number}")
    await task
    if reply.reason == "ABORTED":
        assert reply.tokens == full[: len(reply.tokens)]
    else:
        assert reply.tokens == full


@pytest.mark.parametrize("pool", range(4))
async def test_random_schedules_give_the_tokens_of_the_pure_function(seat: SchedulerSeat, pool: int) -> None:
    draw = random.Random(pool)
    settings = FakeSettings(
        num_blocks=draw.choice([24, 40, 200]),
        block_size=draw.choice([1, 3, 4, 16]) if pool else 4,
        vocab_size=VOCAB,
        max_batch_tokens=draw.choice([5, 16, 64]),
        max_batch_seqs=draw.choice([2, 8]),
    )
    if settings.num_blocks * settings.block_size < 100:
        settings = FakeSettings(num_blocks=100, block_size=1, vocab_size=VOCAB, max_batch_tokens=16)
    async with rig_at(seat, settings) as rig:
        rig.fake.step_delay = draw.choice([0.0, 0.001])
        await asyncio.gather(*(one(rig, random.Random(pool * 1000 + i), i) for i in range(40)))
        stats = await rig.service.wait_idle()
        while stats.fenced_blocks:  # those of a sequence that was aborted in its last step in flight
            stats = await rig.service.stats()
        assert stats.free_blocks + stats.evictable_blocks == stats.num_blocks

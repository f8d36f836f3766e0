"""A26, A06: a worker that answers oddly, one fault a test. Only the row it hits may suffer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.v1 import inference_pb2 as pb
from tests.e2e.metrics import scrape
from tests.e2e.processes import Processes
from tests.e2e.rig import Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, wanted
from tests.e2e.service import Reply, request
from tests.fakes.faults import FAILS_A_ROW, FaultKind

STREAMS = 5
LOSERS = {
    FaultKind.REPEAT: 0,
    FaultKind.REORDER: 0,
    FaultKind.EXTRA_TOKEN: 0,
    FaultKind.FAIL_UNKNOWN_ROW: 0,
    FaultKind.FUTURE_STEP: 0,
    FaultKind.OTHER_SESSION: 0,
    FaultKind.OTHER_EPOCH: 0,
    FaultKind.NO_MESSAGE: 0,
    FaultKind.SECOND_ACCEPT: 0,
    FaultKind.OUT_OF_VOCABULARY: 1,
    FaultKind.NEGATIVE_TOKEN: 1,
    FaultKind.LACK_TOKEN: 1,
    FaultKind.FAIL_ROW: 1,
    FaultKind.FAIL_GRAMMAR: 1,
    FaultKind.RAGGED_BYTES: STREAMS,
    FaultKind.REFUSE: STREAMS,
}


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama)


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat) as made:
        yield made


async def begin_all(rig: Rig, messages: list[pb.GenerateRequest]) -> list["asyncio.Task[Reply]"]:
    """Requests of which each has told a token and none has ended: the worker answers steps one by one until
    then, and none after.
    """
    rig.fake.hold()
    replies = [Reply() for _ in messages]
    tasks = [
        asyncio.create_task(rig.service.run(message, reply))
        for message, reply in zip(messages, replies, strict=True)
    ]
    plans = 0
    while not all(reply.tokens for reply in replies):
        await rig.fake.wait_for_plans(plans + 1)
        plans = len(rig.fake.plans)
        await rig.fake.release(1)
    return tasks


def oddities(rig: Rig) -> float:
    return sum(
        value for key, value in scrape(rig.seat.metrics_url).items() if "oddit" in key or "step_fail" in key
    )


def check_all(replies: list[Reply], prompts: list[list[int]], n: int, losers: int) -> None:
    """Exactly this many failed, after right tokens; the others are whole and right."""
    for prompt, reply in zip(prompts, replies, strict=True):
        assert reply.tokens == wanted(prompt, n)[: len(reply.tokens)]
        assert reply.reason in ("LENGTH", "ERROR")
        assert len(reply.tokens) == n or reply.reason == "ERROR"
    assert sum(reply.reason == "ERROR" for reply in replies) == losers


@pytest.mark.parametrize("kind", LOSERS)
async def test_a26_only_the_affected_request_fails(rig: Rig, kind: FaultKind) -> None:
    rig.fake.step_delay = 0.002
    before = oddities(rig)
    prompts = [prompt_of(5 + seed, seed) for seed in range(STREAMS)]
    tasks = await begin_all(rig, [request(prompt, 60) for prompt in prompts])
    rig.fake.inject(kind)
    await rig.fake.release()
    replies = list(await asyncio.gather(*tasks))
    check_all(replies, prompts, 60, LOSERS[kind])
    assert not rig.fake.faults
    if kind not in FAILS_A_ROW:  # an honest failure is no oddity
        assert oddities(rig) > before
    again = await rig.service.run_all([request(prompt, 5) for prompt in prompts])
    check_all(again, prompts, 5, 0)
    await rig.service.wait_idle()


async def test_a06_a_failed_writer_s_blocks_are_withdrawn_and_its_sharers_go_on(rig: Rig) -> None:
    shared = prompt_of(20, 77)
    prompts = [[*shared, 30 + i, 40 + i] for i in range(6)]
    rig.fake.inject(FaultKind.FAIL_ROW)
    rig.fake.hold()
    tasks = [asyncio.create_task(rig.service.run(request(prompt, 8))) for prompt in prompts]
    await rig.fake.wait_for_plans(2)
    await rig.fake.release()
    check_all(list(await asyncio.gather(*tasks)), prompts, 8, 1)
    after = await rig.service.run_all([request(prompt, 8) for prompt in prompts])
    check_all(after, prompts, 8, 0)
    await rig.service.wait_idle()


async def test_a06_a_failed_step_withdraws_what_it_published(rig: Rig) -> None:
    prompts = [[*prompt_of(20, 78), 30 + i] for i in range(4)]
    rig.fake.inject(FaultKind.REFUSE)
    replies = await rig.service.run_all([request(prompt, 8) for prompt in prompts])
    failed = sum(reply.reason == "ERROR" for reply in replies)
    check_all(replies, prompts, 8, failed)
    assert failed
    again = await rig.service.run_all([request(prompt, 8) for prompt in prompts])
    check_all(again, prompts, 8, 0)

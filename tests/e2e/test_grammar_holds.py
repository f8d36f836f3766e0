"""A request with a grammar waits for the worker to compile it, and nobody else does."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from octavo.errors import reason_of
from octavo.v1 import inference_pb2 as pb
from tests.e2e.metrics import scrape
from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, until, wanted
from tests.e2e.service import request
from tests.e2e.test_streams import Batch
from tests.fakes.fake_worker import FakeSettings

WITH_END = FakeSettings(**vars(SMALL) | {"eos_token_ids": (2,)})


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama)


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat, WITH_END) as made:
        made.fake.step_delay = 0.002
        yield made


def constrained(seed: int = 1, regex: str = "[0-9]+", request_id: str = "") -> pb.GenerateRequest:
    message = request(prompt_of(6, 900 + seed), 40, request_id=request_id)
    message.response_format.regex = regex
    return message


def grammar_rows(rig: Rig) -> int:
    return sum(bool(setup.grammar) for plan in rig.fake.messages for setup in plan.row_setups)


async def test_neighbours_get_their_tokens_while_a_grammar_is_compiled(rig: Rig) -> None:
    rig.fake.grammars.compiles.clear()
    asked = asyncio.create_task(rig.service.run(constrained()))
    await until(lambda: len(rig.fake.grammars.held) == 1)
    for seed in range(3):
        beside = await rig.service.generate(prompt_of(6, seed), 20)
        assert beside.tokens == wanted(prompt_of(6, seed), 20)
    assert len(rig.fake.plans) >= 60
    assert not grammar_rows(rig), "no plan names a grammar that is not compiled"
    assert not asked.done()
    rig.fake.grammars.compiles.set()
    assert (await asked).reason == "LENGTH"
    assert grammar_rows(rig) == 1
    await until(lambda: not rig.fake.grammars.held)


async def test_neighbours_on_the_same_batch_stream_do_not_wait_either(rig: Rig) -> None:
    rig.fake.grammars.compiles.clear()
    batch = Batch(rig)
    await batch.send(constrained(1, request_id="slow"), constrained(2, request_id="given up"))
    await batch.send(*(request(prompt_of(6, seed), 20, request_id=str(seed)) for seed in range(3)))
    await batch.call.write(pb.GenerateBatchRequest(abort_request_id="given up"))
    while not all(batch.replies[str(seed)].reason for seed in range(3)):
        assert await batch.read()
    assert not batch.replies["slow"].tokens
    rig.fake.grammars.compiles.set()
    await batch.finish()
    assert batch.replies["slow"].reason == "LENGTH"
    assert batch.replies["given up"].reason == "ABORTED"
    assert not batch.errors


async def test_one_grammar_is_held_once_for_all_its_requests_and_given_up_after_the_last(rig: Rig) -> None:
    replies = await rig.service.run_all([constrained(seed, request_id=f"r{seed}") for seed in range(6)])
    assert [reply.reason for reply in replies] == ["LENGTH"] * 6
    await until(lambda: not rig.fake.grammars.held)
    rig.fake.hold()
    rows = grammar_rows(rig)
    tasks = [asyncio.create_task(rig.service.run(constrained(seed))) for seed in range(3)]
    await until(lambda: grammar_rows(rig) > rows)
    assert len(rig.fake.grammars.held) == 1
    await rig.fake.release()
    await asyncio.gather(*tasks)
    await until(lambda: not rig.fake.grammars.held)


@pytest.mark.parametrize("way", ["cancel", "deadline", "queue_timeout"])
async def test_who_leaves_while_its_grammar_is_compiled_leaves_nothing(rig: Rig, way: str) -> None:
    rig.fake.grammars.compiles.clear()
    message = constrained()
    if way == "queue_timeout":
        message.queue_timeout.FromMilliseconds(200)
    task = asyncio.create_task(rig.service.run(message, timeout=0.2 if way == "deadline" else None))
    await until(lambda: bool(rig.fake.grammars.held) or task.done())
    if way == "cancel":
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    else:
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await task
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if way == "queue_timeout":
            assert reason_of(ended.value) == "QUEUE_TIMEOUT"
    await until(lambda: not rig.fake.grammars.held)
    rig.fake.grammars.compiles.set()
    assert (await rig.service.run(constrained())).reason == "LENGTH"
    assert grammar_rows(rig) == 1
    await rig.service.wait_idle()


async def test_a_grammar_that_the_worker_cannot_compile_is_invalid(rig: Rig) -> None:
    rig.fake.grammars.error = "too   big\nfor this worker"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await rig.service.run(constrained())
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "response_format.regex: too big for this worker"
    assert reason_of(refused.value) == "INVALID_GRAMMAR"
    assert not rig.fake.plans
    await until(lambda: not rig.fake.grammars.held)


async def test_a_worker_that_can_follow_no_grammar_is_named_with_its_reason(rig: Rig) -> None:
    rig.fake.grammars.none = "eos_token_id 900: must be below 384, the number of tokenizer.json's ids"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await rig.service.run(constrained())
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.value.details() == (f"response_format.regex: cannot be followed: {rig.fake.grammars.none}")
    assert reason_of(refused.value) == "NO_GRAMMARS"
    assert not rig.fake.plans
    await until(lambda: not rig.fake.grammars.held)


async def test_more_grammars_than_a_worker_holds_are_refused_with_a_delay(rig: Rig) -> None:
    rig.fake.grammars.full = True
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await rig.service.run(constrained())
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == (
        "response_format.regex: 9 characters of grammars would be live, limit 8"
    )
    assert reason_of(refused.value) == "GRAMMAR_BACKLOG"
    details = status_pb2.Status.FromString(dict(refused.value.trailing_metadata())["grpc-status-details-bin"])
    assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in details.details)
    rejected = scrape(rig.seat.metrics_url)
    assert rejected['octavo_admission_rejections_total{reason="GRAMMAR_BACKLOG"}'] == 1
    rig.fake.grammars.full = False
    assert (await rig.service.run(constrained())).reason == "LENGTH"


async def test_a25_a_new_worker_compiles_what_is_live_before_its_first_plan(rig: Rig) -> None:
    """Also what arrived while it was away, and what was being compiled when it died."""
    reply, task = await rig.begin(constrained(1))
    rig.fake.hold()
    rig.fake.grammars.compiles.clear()
    compiling = asyncio.create_task(rig.service.run(constrained(2, "[a-f]+")))
    await until(lambda: len(rig.fake.grammars.held) == 2)
    await rig.fake.die()
    await rig.service.wait_ready(False)
    arrived = asyncio.create_task(rig.service.run(constrained(3, "[x-z]+")))
    await rig.service.wait_waiting(3)
    rig.fake.plans.clear()
    await rig.fake.restart(WITH_END)
    await until(lambda: len(rig.fake.grammars.held) == 3)
    assert not await rig.service.ready()
    assert not rig.fake.plans
    await rig.fake.release()
    rig.fake.grammars.compiles.set()
    assert {one.reason for one in await asyncio.gather(task, compiling, arrived)} == {"LENGTH"}
    assert len(reply.tokens) == 40
    await until(lambda: not rig.fake.grammars.held)

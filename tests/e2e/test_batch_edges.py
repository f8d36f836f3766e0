"""Edges of a GenerateBatch stream: nothing, nonsense, ids met twice, deadlines, a full queue."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from octavo.v1 import inference_pb2 as pb
from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, until, wanted
from tests.e2e.service import request
from tests.e2e.test_streams import Batch

ROOMY = replace(SMALL, num_blocks=4000, max_model_len=9000)


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama, "--max-queue-requests", "40")


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat, ROOMY) as made:
        made.fake.step_delay = 0.002
        yield made


async def test_a_stream_without_a_request_ends_well(rig: Rig) -> None:
    batch = Batch(rig)
    await batch.finish()
    assert await batch.call.code() is grpc.StatusCode.OK
    assert not batch.messages


async def test_a20_a_message_without_an_action_is_refused_and_the_stream_goes_on(rig: Rig) -> None:
    batch = Batch(rig)
    await batch.call.write(pb.GenerateBatchRequest())
    await batch.call.write(pb.GenerateBatchRequest(abort_request_id=""))
    await batch.send(request(prompt_of(5), 4, request_id="good"))
    await batch.finish()
    assert batch.errors == [("", "EMPTY_PROMPT")]
    assert batch.replies["good"].tokens == wanted(prompt_of(5), 4)


async def test_requests_without_an_id_get_one_each_and_keep_apart(rig: Rig) -> None:
    batch = Batch(rig)
    await batch.send(*(request(prompt_of(5, seed), 6) for seed in range(8)))
    await batch.finish()
    assert "" not in batch.replies
    told = sorted(reply.tokens for reply in batch.replies.values())
    assert told == sorted(wanted(prompt_of(5, seed), 6) for seed in range(8))


async def test_an_id_is_one_stream_s_while_it_lives_and_nobody_else_aborts_it_there(rig: Rig) -> None:
    first, second = Batch(rig), Batch(rig)
    await first.send(request(prompt_of(5), 300, request_id="mine"))
    while not first.replies["mine"].tokens:
        assert await first.read()
    rig.fake.hold()  # it lives until then
    await second.send(request(prompt_of(6), 5, request_id="mine"))
    await second.call.write(pb.GenerateBatchRequest(abort_request_id="mine"))
    assert await second.read()
    assert second.errors == [("mine", "REQUEST_ID_LIVE")]
    await rig.fake.release()
    await first.finish()
    assert first.replies["mine"].tokens == wanted(prompt_of(5), 300)
    await second.send(request(prompt_of(6), 5, request_id="mine"))
    await second.finish()
    assert second.replies["mine"].tokens == wanted(prompt_of(6), 5)


async def test_a01_an_abort_ends_every_sequence_of_a_request(rig: Rig) -> None:
    batch, message = Batch(rig), request(prompt_of(5), 2000, request_id="group")
    message.n = 3
    await batch.send(message, request(prompt_of(6), 10, request_id="other"))
    while len(batch.replies["group"].branches) < 3:
        assert await batch.read()
    rig.fake.hold()
    await batch.call.write(pb.GenerateBatchRequest(abort_request_id="group"))
    while len(batch.replies["group"].ends) < 3:
        assert await batch.read()
    await rig.fake.release()
    await batch.finish()
    assert batch.replies["group"].ends == dict.fromkeys(range(3), ("ABORTED", None))
    assert batch.replies["other"].tokens == wanted(prompt_of(6), 10)
    await rig.service.wait_idle()


async def test_a23_a_deadline_of_the_call_ends_all_of_it(rig: Rig) -> None:
    batch = Batch(rig)
    batch.call = rig.service.inference.GenerateBatch(timeout=2)
    await batch.send(*(request(prompt_of(5, seed), 8000, request_id=f"{seed}") for seed in range(4)))
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await batch.finish()
    assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await rig.service.wait_idle()


async def test_what_a_full_queue_refuses_is_told_by_id_and_the_rest_is_served(rig: Rig) -> None:
    rig.fake.hold()
    batch = Batch(rig)
    await batch.send(*(request(prompt_of(5, seed), 3, request_id=f"{seed}") for seed in range(120)))
    reading = asyncio.create_task(batch.finish())
    await until(lambda: len(batch.errors) >= 120 - 40 - 2 * 16)
    await rig.fake.release()
    await reading
    refused = {request_id for request_id, _ in batch.errors}
    assert {reason for _, reason in batch.errors} == {"QUEUE_FULL"}
    for seed in range(120):
        assert (str(seed) in refused) != (batch.replies[str(seed)].tokens == wanted(prompt_of(5, seed), 3))

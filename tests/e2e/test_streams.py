"""The three ways to generate say the same; many requests share a stream; a stream that is not read is
dropped.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from octavo.errors import reason_of
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc
from tests.e2e.metrics import scrape
from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, wanted
from tests.e2e.service import Reply, request

ROOMY = replace(SMALL, num_blocks=4000, max_model_len=9000)


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama, "--stream-stall-seconds", "1")


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat, ROOMY) as made:
        yield made


class Batch:
    """One GenerateBatch stream and what came back, by request id."""

    def __init__(self, rig: Rig) -> None:
        self.call: Any = rig.service.inference.GenerateBatch()
        self.replies: dict[str, Reply] = defaultdict(Reply)
        self.errors: list[tuple[str, str]] = []
        self.messages = 0

    async def send(self, *messages: pb.GenerateRequest) -> None:
        for message in messages:
            await self.call.write(pb.GenerateBatchRequest(generate=message))

    async def read(self) -> bool:
        """Takes one message in. False at the end of the stream."""
        message = await self.call.read()
        if message is grpc.aio.EOF:
            return False
        self.messages += 1
        for event in message.events:
            kind = event.WhichOneof("event")
            if kind == "error":
                self.errors.append((event.request_id, event.error.reason))
            else:
                self.replies[event.request_id].take(pb.GenerateResponse(**{kind: getattr(event, kind)}))
        return True

    async def finish(self) -> None:
        await self.call.done_writing()
        while await self.read():
            pass


@pytest.mark.parametrize("stop", [(), ("e",), ("zzz",)])
async def test_a16_a17_stream_unary_and_batch_say_the_same(rig: Rig, stop: Sequence[str]) -> None:
    for seed in range(5):
        message = request(prompt_of(7, seed), 40, stop=stop, temperature=1.0, seed=seed)
        streamed = await rig.service.run(message)
        once = await rig.service.inference.GenerateOnce(pb.GenerateOnceRequest(request=message))
        batch = Batch(rig)
        named = pb.GenerateRequest(request_id="x")
        named.MergeFrom(message)
        named.request_id = "x"
        await batch.send(named)
        await batch.finish()
        completion = once.completions[0]
        multiplexed = batch.replies["x"]
        assert streamed.text == completion.text == multiplexed.text
        assert streamed.tokens == list(completion.token_ids) == multiplexed.tokens
        assert streamed.completion_tokens == once.usage.completion_tokens == multiplexed.completion_tokens
        assert streamed.reason == multiplexed.reason
        assert completion.finished.stop in ("", *stop)


async def test_token_ids_only_sends_the_same_tokens_and_no_text(rig: Rig) -> None:
    message = request(prompt_of(7), 20)
    message.output.token_ids_only = True
    reply = await rig.service.run(message)
    assert (reply.tokens, reply.text) == (wanted(prompt_of(7), 20), "")


async def test_many_requests_share_a_stream_and_a_step_is_one_message(rig: Rig) -> None:
    rig.fake.step_delay = 0.002
    batch = Batch(rig)
    prompts = {f"r{number}": prompt_of(3 + number, number) for number in range(12)}
    await batch.send(*(request(prompt, 30, request_id=name) for name, prompt in prompts.items()))
    await batch.finish()
    assert {name: reply.tokens for name, reply in batch.replies.items()} == {
        name: wanted(prompt, 30) for name, prompt in prompts.items()
    }
    assert {reply.reason for reply in batch.replies.values()} == {"LENGTH"}
    assert batch.messages <= len(rig.fake.plans) + len(prompts)
    await rig.service.wait_idle()


async def test_a01_an_abort_on_the_stream_ends_one_request_of_it(rig: Rig) -> None:
    rig.fake.step_delay = 0.002
    batch = Batch(rig)
    await batch.send(
        request(prompt_of(5, 1), 2000, request_id="long"), request(prompt_of(5, 2), 50, request_id="short")
    )
    while not batch.replies["long"].tokens:
        assert await batch.read()
    await batch.call.write(pb.GenerateBatchRequest(abort_request_id="long"))
    await batch.call.write(pb.GenerateBatchRequest(abort_request_id="never seen"))
    await batch.finish()
    assert batch.replies["long"].reason == "ABORTED"
    assert batch.replies["short"].tokens == wanted(prompt_of(5, 2), 50)


async def test_a_refused_request_of_a_batch_is_told_and_the_others_go_on(rig: Rig) -> None:
    batch = Batch(rig)
    bad = request([], 5, request_id="bad")
    twice = request(prompt_of(5), 30, request_id="twice")
    rig.fake.hold()  # the first of the same id lives until the second has come
    await batch.send(twice, bad, twice, request(prompt_of(6), 5, request_id="good"))
    while len(batch.errors) < 2:
        assert await batch.read()
    await rig.fake.release()
    await batch.finish()
    assert sorted(batch.errors) == [("bad", "EMPTY_PROMPT"), ("twice", "REQUEST_ID_LIVE")]
    assert batch.replies["twice"].tokens == wanted(prompt_of(5), 30)
    assert batch.replies["good"].tokens == wanted(prompt_of(6), 5)


async def test_a02_a_batch_stream_that_is_cancelled_frees_all_its_requests(rig: Rig) -> None:
    rig.fake.step_delay = 0.002
    batch = Batch(rig)
    await batch.send(*(request(prompt_of(5, n), 2000, request_id=f"c{n}") for n in range(6)))
    while len(batch.replies) < 6:
        assert await batch.read()
    batch.call.cancel()
    stats = await rig.service.wait_idle()
    assert stats.running_requests == 0
    assert sum(len(reply.tokens) for reply in batch.replies.values()) < 6 * 2000


async def test_an_idle_batch_stream_stays_open_until_the_client_ends_it(rig: Rig) -> None:
    batch = Batch(rig)
    await asyncio.sleep(1.5)  # longer than a stalled reader may take: this one has nothing to read
    await batch.send(request(prompt_of(5), 3, request_id="late"))
    await batch.finish()
    assert batch.replies["late"].tokens == wanted(prompt_of(5), 3)


async def read_out(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


@pytest.mark.parametrize("method", ["Generate", "GenerateBatch"])
async def test_a22_a_stream_that_nobody_reads_is_dropped_and_told_why(rig: Rig, method: str) -> None:
    """The client's window is small and fixed, so that a few thousand messages fill it."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    message = request(prompt_of(5), 8000, request_id="unread")
    async with grpc.aio.insecure_channel(rig.seat.process.address, options=options) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        before = scrape(rig.seat.metrics_url)['octavo_requests_total{outcome="stream_backlog"}']
        if method == "Generate":
            call = stub.Generate(message)
        else:
            call = stub.GenerateBatch()
            await call.write(pb.GenerateBatchRequest(generate=message))
        await rig.fake.wait_for_plans(100)
        await rig.service.wait_idle(timeout=60)
        after = scrape(rig.seat.metrics_url)['octavo_requests_total{outcome="stream_backlog"}']
        assert after - before == 1
        assert len(rig.fake.plans) < 8000
        with pytest.raises(grpc.aio.AioRpcError) as dropped:
            await read_out(call)
        assert dropped.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason_of(dropped.value) == "STREAM_BACKLOG"

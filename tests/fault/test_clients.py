"""A02, A22, A23: clients that go away, do not read, or run out of time, against a fake worker."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import psutil  # type: ignore[import-untyped]
import pytest

from octavo.errors import reason_of
from octavo.v1 import inference_pb2 as pb
from tests.e2e.processes import Processes
from tests.e2e.proxy import Proxy
from tests.e2e.rig import VOCAB, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, wanted
from tests.e2e.service import Service, request
from tests.fakes.fake_worker import FakeSettings

BLOCK = 4
LONG = 900
DEPTH = 3
"""Steps in flight, by default."""
ROOMY = FakeSettings(
    num_blocks=2000, block_size=BLOCK, vocab_size=VOCAB, max_batch_tokens=256, max_batch_seqs=64
)


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama)


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat, ROOMY) as made:
        made.fake.step_delay = 0.003
        yield made


async def check_gone(rig: Rig, prompt: list[int], plans_before: int) -> None:
    """With the worker's answers held: no request runs any more, no step was sent beyond those in flight then,
    and the full blocks serve a retry.
    """
    async with asyncio.timeout(60):
        while (await rig.service.stats()).running_requests:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)
    await rig.fake.release()
    await rig.service.wait_idle()
    assert len(rig.fake.plans) - plans_before <= DEPTH
    again = await rig.service.generate(prompt, 4)
    assert again.tokens == wanted(prompt, 4)
    assert again.cached == (len(prompt) - 1) // BLOCK * BLOCK or again.cached == len(prompt) - 1


async def test_a02_a_cancelled_stream_leaves_and_its_prefix_stays(rig: Rig) -> None:
    prompt = prompt_of(21)
    reply, task = await rig.begin(request(prompt, LONG))
    rig.fake.hold()
    plans = len(rig.fake.plans)
    task.cancel()
    await check_gone(rig, prompt, plans)
    assert reply.tokens == wanted(prompt, len(reply.tokens))


async def test_a02_a_cancelled_unary_call_leaves(rig: Rig) -> None:
    prompt = prompt_of(22)
    call = rig.service.inference.GenerateOnce(pb.GenerateOnceRequest(request=request(prompt, LONG)))
    task = asyncio.ensure_future(call)
    await rig.fake.wait_for_plans(5)
    rig.fake.hold()
    plans = len(rig.fake.plans)
    call.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await check_gone(rig, prompt, plans)


async def test_a02_a_cancelled_batch_stream_leaves_with_all_its_requests(rig: Rig) -> None:
    prompts = [prompt_of(26, seed) for seed in range(5)]
    call = rig.service.inference.GenerateBatch()
    for prompt in prompts:
        await call.write(pb.GenerateBatchRequest(generate=request(prompt, LONG)))
    told: set[str] = set()
    while len(told) < len(prompts):
        told |= {event.request_id for event in (await call.read()).events if event.HasField("delta")}
    rig.fake.hold()
    plans = len(rig.fake.plans)
    call.cancel()
    await check_gone(rig, prompts[0], plans)


async def test_a02_a_killed_client_leaves(rig: Rig, processes: Processes) -> None:
    prompt = prompt_of(23)
    rig.fake.step_delay = 0.01
    words = [rig.seat.process.address, str(LONG), *map(str, prompt)]
    client = await asyncio.to_thread(processes.start, "client", "tests.e2e.client_process", *words)
    rig.fake.hold()
    plans = len(rig.fake.plans)
    client.kill()
    await check_gone(rig, prompt, plans)


@pytest.mark.long
async def test_a02_a_client_whose_network_vanishes_leaves_within_the_keepalive_bound(rig: Rig) -> None:
    prompt = prompt_of(24)
    rig.fake.step_delay = 0.1
    async with Proxy(rig.seat.process.address) as proxy, Service(proxy.address) as far:
        task = asyncio.create_task(far.run(request(prompt, LONG)))
        await rig.fake.wait_for_plans(5)
        proxy.swallow()
        await rig.service.wait_idle()
        assert len(rig.fake.plans) < LONG
        task.cancel()


async def test_a22_connections_that_speak_no_grpc_keep_nobody_out(rig: Rig) -> None:
    host, _, port = rig.seat.process.address.rpartition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    beginnings = (b"", preface[:10], preface, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\x00" * 4096)
    writers = []
    for number in range(300):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(beginnings[number % len(beginnings)])
        writers.append(writer)
    prompts = [prompt_of(8, seed) for seed in range(8)]
    replies = await rig.service.run_all([request(prompt, 20) for prompt in prompts])
    assert [reply.tokens for reply in replies] == [wanted(prompt, 20) for prompt in prompts]
    for writer in writers:
        writer.transport.abort()
    await rig.service.wait_idle()


async def test_a22_streams_that_nobody_reads_hold_nobody_up(rig: Rig) -> None:
    rig.fake.step_delay = 0.0
    scheduler = psutil.Process(rig.seat.process.pid)
    before = scheduler.memory_info().rss
    calls = [rig.service.inference.Generate(request(prompt_of(9, seed), LONG)) for seed in range(20)]
    await asyncio.gather(*(call.read() for call in calls))
    prompt = prompt_of(30)
    reader = await rig.service.generate(prompt, 200)
    assert reader.tokens == wanted(prompt, 200)
    for call in calls[:10]:
        call.cancel()
    assert scheduler.memory_info().rss - before < 64 << 20
    for seed, call in enumerate(calls[10:], 10):  # whoever reads late still gets everything
        tokens: list[int] = []
        while (event := await call.read()) is not grpc.aio.EOF:
            tokens += event.delta.token_ids
        assert tokens[-50:] == wanted(prompt_of(9, seed), LONG)[-50:]
    await rig.service.wait_idle()


READERS, AT_ONCE = 200, 220


async def test_a22_200_readers_that_stop_stutter_or_leave_keep_no_handler_and_no_memory(
    processes: Processes, tiny_llama: Path
) -> None:
    """Three crowds, one after the other, of more calls together than may be open at once: a handler that was
    stuck in a write after its client had left would count against the third.
    """
    seat = seat_scheduler(processes, tiny_llama, "--max-concurrent-streams", str(AT_ONCE))
    sizes = []
    async with rig_at(seat, replace(ROOMY, num_blocks=20_000, max_batch_seqs=256)) as rig:
        scheduler = psutil.Process(seat.process.pid)
        for crowd in range(3):
            prompts = [prompt_of(7, 1000 * crowd + number) for number in range(READERS)]
            calls = [rig.service.inference.Generate(request(prompt, 200)) for prompt in prompts]
            await asyncio.gather(*(call.read() for call in calls))
            for call in calls[:100]:  # leave without having read on
                call.cancel()
            told = await asyncio.gather(*(slowly(call) for call in calls[100:]))
            for prompt, tokens in zip(prompts[100:], told, strict=True):
                assert tokens[-20:] == wanted(prompt, 200)[-20:]
            await rig.service.wait_idle()
            sizes.append(scheduler.memory_info().rss)
    assert sizes[2] - sizes[0] < 16 << 20


async def slowly(call: Any) -> list[int]:
    """The tokens of a stream after its first event, read with pauses at its beginning."""
    tokens: list[int] = []
    events = 0
    while (event := await call.read()) is not grpc.aio.EOF:
        tokens += event.delta.token_ids
        events += 1
        if events < 5:
            await asyncio.sleep(0.05)
    return tokens


async def test_unseeded_requests_vary_and_0_is_a_seed_like_any_other(rig: Rig) -> None:
    """A18, at the whole service's end: the seed that the server draws is another one each time."""
    prompt = prompt_of(12)
    drawn = [await rig.service.generate(prompt, 12, temperature=1.0, seed=None) for _ in range(4)]
    assert len({tuple(reply.tokens) for reply in drawn}) == 4
    zero = [await rig.service.generate(prompt, 12, temperature=1.0, seed=0) for _ in range(2)]
    assert zero[0].tokens == zero[1].tokens == wanted(prompt, 12, temperature=1.0, seed=0)


async def test_a23_no_deadline_means_none(rig: Rig) -> None:
    reply = await rig.service.generate(prompt_of(8), 20)
    assert reply.tokens == wanted(prompt_of(8), 20)


async def test_a23_a_deadline_in_a_shared_step_ends_one_request_only(rig: Rig) -> None:
    rig.fake.step_delay = 0.01
    other, other_task = await rig.begin(request(prompt_of(10), 60))
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await rig.service.run(request(prompt_of(11), LONG), timeout=0.3)
    assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await other_task
    assert other.tokens == wanted(prompt_of(10), 60)
    await rig.service.wait_idle()
    assert len(rig.fake.sessions) == 1


async def test_a23_a_deadline_and_a_queue_timeout_end_a_waiting_request(seat: SchedulerSeat) -> None:
    """At a worker of one row, which another request has until both are over."""
    async with rig_at(seat, replace(ROOMY, max_batch_seqs=1)) as rig:
        rig.fake.hold()
        running = asyncio.create_task(rig.service.run(request(prompt_of(12), 40)))
        await rig.fake.wait_for_plans(1)
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await rig.service.run(request(prompt_of(13), 5), timeout=0.3)
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.aio.AioRpcError) as queued:
            await rig.service.run(request(prompt_of(14), 5, queue_timeout=0.2))
        assert queued.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert reason_of(queued.value) == "QUEUE_TIMEOUT"
        await rig.fake.release()
        assert (await running).tokens == wanted(prompt_of(12), 40)
        assert all(setup.prompt_len == 12 for plan in rig.fake.plans for setup in plan.setups)
        await rig.service.wait_idle()

"""Crowds: 10,000 requests in the queue, 1,000 streams at once over either door."""

import asyncio
import json
import resource
from pathlib import Path

import grpc
import psutil  # type: ignore[import-untyped]
import pytest

from octavo.v1 import inference_pb2 as pb
from scheduler_svc.text import TextModel
from tests.e2e.gateway.door import Door, allow_many_sockets, door_at
from tests.e2e.processes import Processes
from tests.e2e.rig import VOCAB, prompt_of, rig_at, seat_scheduler, wanted
from tests.e2e.service import request
from tests.fakes.fake_worker import FakeSettings

QUEUED, STREAMS = 10_000, 1_000
ROOMY = FakeSettings(
    num_blocks=16_384, block_size=4, vocab_size=VOCAB, max_batch_tokens=4096, max_batch_seqs=1024
)


@pytest.mark.timeout(300)
async def test_10000_requests_wait_and_each_gets_its_own_tokens(
    processes: Processes, tiny_llama: Path
) -> None:
    seat = seat_scheduler(processes, tiny_llama, "--max-queue-requests", str(QUEUED), "--max-num-seqs", "256")
    prompts = [prompt_of(5, seed) for seed in range(QUEUED)]
    async with rig_at(seat, ROOMY) as rig:
        rig.fake.hold()
        call = rig.service.inference.GenerateBatch()

        async def put() -> None:
            for number, prompt in enumerate(prompts):
                message = request(prompt, 2, request_id=str(number))
                await call.write(pb.GenerateBatchRequest(generate=message))
            await call.done_writing()

        writing = asyncio.create_task(put())
        async with asyncio.timeout(250):
            while (await rig.service.stats()).waiting_requests < QUEUED - 2 * 256:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await writing
        await rig.fake.release()
        tokens: dict[str, list[int]] = {}
        ended = 0
        while (answer := await call.read()) is not grpc.aio.EOF:
            for event in answer.events:
                tokens.setdefault(event.request_id, []).extend(event.delta.token_ids)
                ended += event.HasField("finished")
        assert ended == QUEUED
        for number in range(0, QUEUED, 97):
            assert tokens[str(number)] == wanted(prompts[number], 2)
        await rig.service.wait_idle()


@pytest.mark.timeout(300)
async def test_1000_streams_at_once_over_either_door(
    processes: Processes, tiny_llama: Path, text: TextModel
) -> None:
    allow_many_sockets(STREAMS)
    seat = seat_scheduler(processes, tiny_llama, "--max-num-seqs", "1024")
    gateway = processes.gateway(seat.process.address)
    prompts = [prompt_of(6, seed) for seed in range(STREAMS)]
    async with rig_at(seat, ROOMY) as rig, door_at(gateway, rig, text) as door:
        rig.fake.hold()
        calls = [asyncio.create_task(rig.service.generate(prompt, 3)) for prompt in prompts]
        await _live(door, STREAMS)
        await rig.fake.release()
        replies = await asyncio.gather(*calls)
        assert [reply.tokens for reply in replies] == [wanted(prompt, 3) for prompt in prompts]

        rig.fake.hold()
        calls = [asyncio.create_task(_over_http(gateway.address, prompt)) for prompt in prompts]
        await _live(door, STREAMS)
        await rig.fake.release()
        bodies = await asyncio.gather(*calls)
        for prompt, body in zip(prompts, bodies, strict=True):
            assert body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert body.count(b'"token_ids":[') >= 2
            for token in wanted(prompt, 3):
                assert str(token).encode() in body
        await door.idle()


async def _live(door: Door, count: int) -> None:
    async with asyncio.timeout(250):
        while (stats := await door.rig.service.stats()).running_requests + stats.waiting_requests < count:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _over_http(address: str, prompt: list[int]) -> bytes:
    """All bytes of a stream, on a connection of its own."""
    host, _, port = address.rpartition(":")
    body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    content = json.dumps(body | {"stream": True, "return_token_ids": True}).encode()
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n"
    kind = f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write((head + kind).encode() + content)
    answer = await reader.read()
    writer.close()
    return answer


def test_the_gateway_takes_as_many_files_as_it_may(processes: Processes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = psutil.Process().num_fds() + 64  # what is open here and what the start needs
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(few, hard), hard))
    try:
        gateway = processes.gateway("127.0.0.1:1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limits = Path(f"/proc/{gateway.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert int(line.split()[3]) == min(hard, 1 << 16)

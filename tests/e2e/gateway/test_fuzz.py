"""A20: generated requests over both doors, each followed by a health request: no hang, no crash."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest

from octavo.errors import reason_of
from octavo.v1 import inference_pb2 as pb
from tests.e2e.gateway.door import Door
from tests.e2e.rig import SMALL, Rig, SchedulerSeat, prompt_of, rig_at, wanted
from tests.fixtures.fuzz import fill
from tests.fixtures.http_fuzz import Drawn, draw_request

PIECE = 5000
PIECES = 10
"""Of each door: 100,000 requests in all."""
FEW = 400
ANSWER_SECONDS = 60.0
STATUSES = {200, 400, 404, 405, 409, 413, 415, 429, 504}
CODES = {
    "OK",
    "INVALID_ARGUMENT",
    "UNIMPLEMENTED",
    "FAILED_PRECONDITION",
    "ALREADY_EXISTS",
    "QUEUE_TIMEOUT",
    "CANCELLED",
}
METHODS = ("Generate", "GenerateOnce", "GenerateBatch", "Tokenize", "Detokenize", "Abort", "garbage")
GOOD = prompt_of(7)


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    """A worker whose model has an end, so that grammars are taken."""
    async with rig_at(seat, replace(SMALL, eos_token_ids=(2,))) as made:
        yield made


async def check_good(door: Door) -> None:
    """A good request over each door has the right tokens, and no block stays held."""
    assert (await door.rig.service.generate(GOOD, 2)).tokens == wanted(GOOD, 2)
    body = {"prompt": GOOD, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    answer = (await door.post("/v1/completions", body)).json()
    assert answer["choices"][0]["token_ids"] == wanted(GOOD, 2)
    stats = await door.rig.service.wait_idle(ANSWER_SECONDS)
    assert stats.free_blocks + stats.evictable_blocks + stats.fenced_blocks == stats.num_blocks


async def send(door: Door, drawn: Drawn) -> int:
    """The status, 0 when the client left on purpose."""
    request = door.http.build_request(
        drawn.method, drawn.path, content=drawn.content, headers=drawn.headers, timeout=ANSWER_SECONDS
    )
    if drawn.leaves:
        call = asyncio.create_task(door.http.send(request, stream=True))
        await asyncio.wait({call}, timeout=0.003)
        call.cancel()
        done = await asyncio.gather(call, return_exceptions=True)
        if not isinstance(done[0], BaseException):
            await done[0].aclose()
        return 0
    answer = await door.http.send(request)
    assert answer.status_code in STATUSES, drawn
    if answer.status_code != 200 and drawn.method != "HEAD":
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}, answer.text
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.content.endswith(b"data: [DONE]\n\n")
    return answer.status_code


async def http_door(door: Door, seed: int, count: int) -> Counter[int]:
    draw = random.Random(seed)
    statuses: Counter[int] = Counter()
    for number in range(count):
        drawn = draw_request(draw)
        status = await send(door, drawn)
        statuses[status] += 1
        assert (await door.http.get("/health")).status_code == 200, (seed, number, drawn)
        if number % 250 == 0:
            await check_good(door)
    await check_good(door)
    return statuses


def draw_message(draw: random.Random) -> pb.GenerateRequest:
    message = pb.GenerateRequest()
    fill(draw, message, draw.choice([0.05, 0.1, 0.3]))
    if draw.random() < 0.5:
        message.token_ids.ids[:] = [5, 6, 7]
    if draw.random() < 0.9 and not message.stopping.HasField("max_tokens"):
        message.stopping.max_tokens = 2
    return message


async def call(rig: Rig, draw: random.Random) -> str:
    """How one drawn call ended."""
    stub, method = rig.service.inference, draw.choice(METHODS)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            if method == "Generate":
                stream = stub.Generate(draw_message(draw))
                async for _ in stream:
                    if draw.random() < 0.05:
                        stream.cancel()
            elif method == "GenerateOnce":
                await stub.GenerateOnce(pb.GenerateOnceRequest(request=draw_message(draw)))
            elif method == "GenerateBatch":
                await batch(rig, [draw_message(draw) for _ in range(draw.choice([1, 3]))])
            elif method == "garbage":
                path = f"/octavo.v1.InferenceService/{draw.choice(METHODS[1:6])}"
                raw = rig.service.channel.unary_unary(path)
                await raw(bytes(draw.choices(range(256), k=draw.choice([0, 3, 40]))))
            else:
                request = getattr(pb, f"{method}Request")()
                fill(draw, request, 0.5)
                await getattr(stub, method)(request)
    except grpc.aio.AioRpcError as error:
        if method == "garbage":
            return "garbage"
        return "QUEUE_TIMEOUT" if reason_of(error) == "QUEUE_TIMEOUT" else error.code().name
    except asyncio.CancelledError:
        return "CANCELLED"
    return "OK"


async def batch(rig: Rig, messages: list[pb.GenerateRequest]) -> None:
    stream = rig.service.inference.GenerateBatch()
    for message in messages:
        await stream.write(pb.GenerateBatchRequest(generate=message))
    await stream.done_writing()
    while await stream.read() is not grpc.aio.EOF:
        pass


async def grpc_door(door: Door, seed: int, count: int) -> Counter[str]:
    draw = random.Random(seed)
    codes: Counter[str] = Counter()
    for number in range(count):
        code = await call(door.rig, draw)
        assert code in CODES | {"garbage"}, (seed, number, code)
        codes[code] += 1
        assert await door.rig.service.ready(), (seed, number)
        if number % 250 == 0:
            await check_good(door)
    await check_good(door)
    return codes


async def test_a20_a_few_generated_requests_over_http(door: Door) -> None:
    statuses = await http_door(door, 1, FEW)
    assert statuses[200] > FEW // 8
    assert statuses[400] > FEW // 8


async def test_a20_a_few_generated_calls_over_grpc(door: Door) -> None:
    codes = await grpc_door(door, 1, FEW)
    assert codes["OK"] > FEW // 8
    assert codes["INVALID_ARGUMENT"] > FEW // 8


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("piece", range(PIECES))
async def test_a20_fifty_thousand_generated_requests_over_http(door: Door, piece: int) -> None:
    print(await http_door(door, 1000 + piece, PIECE))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("piece", range(PIECES))
async def test_a20_fifty_thousand_generated_calls_over_grpc(door: Door, piece: int) -> None:
    print(await grpc_door(door, 2000 + piece, PIECE))

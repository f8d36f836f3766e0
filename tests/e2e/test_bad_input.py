"""A20: bad input over the wire is refused by field and limit, holds no block, and the next request works."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc
import pytest
from google.protobuf import duration_pb2

from octavo.errors import reason_of
from octavo.v1 import inference_pb2 as pb
from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, VOCAB, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, wanted
from tests.e2e.service import request
from tests.fixtures.fuzz import fill

POOL_TOKENS = SMALL.num_blocks * SMALL.block_size
REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.FAILED_PRECONDITION,
)


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama)


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat) as made:
        yield made


def changed(**parts: Any) -> pb.GenerateRequest:
    """A good request with some parts overwritten."""
    message = request([5, 6, 7], 2)
    for name, value in parts.items():
        if isinstance(value, dict):
            getattr(message, name).MergeFrom(type(getattr(message, name))(**value))
        elif hasattr(value, "DESCRIPTOR"):
            getattr(message, name).CopyFrom(value)
        else:
            setattr(message, name, value)
    return message


CASES: dict[str, tuple[pb.GenerateRequest, str, str]] = {
    # request, reason, start of the message
    "no prompt": (pb.GenerateRequest(), "EMPTY_PROMPT", "prompt: "),
    "empty text": (pb.GenerateRequest(text=""), "EMPTY_PROMPT", "text: is empty"),
    "no ids": (request([]), "EMPTY_PROMPT", "token_ids: is empty"),
    "id out of vocabulary": (request([5, VOCAB]), "TOKEN_OUT_OF_VOCABULARY", "token_ids[1]: token id 384"),
    "a negative id": (request([2**32 - 1]), "TOKEN_OUT_OF_VOCABULARY", "token_ids[0]: token id 4294967295"),
    "prompt at the model's limit": (request([5] * SMALL.max_model_len), "EXCEEDS_MODEL_LEN", "token_ids: "),
    "max_tokens over the context": (
        request([5], SMALL.max_model_len), "EXCEEDS_MODEL_LEN", "stopping.max_tokens: "),
    "10 MB of text": (request("x " * 5_000_000), "INVALID_FIELD", "text: 10000000 bytes, the limit is 4"),
    "max_tokens 0": (request([5], 0), "INVALID_FIELD", "stopping.max_tokens: 0 is out of [1, "),
    "max_tokens 2^31": (request([5], 2**31), "INVALID_FIELD", "stopping.max_tokens: 2147483648 is out of"),
    "min over max": (request([5], 2, min_tokens=3), "INVALID_FIELD", "stopping.min_tokens: 3 is above"),
    "top_p 1.5": (changed(sampling={"top_p": 1.5}), "INVALID_FIELD", "sampling.top_p: 1.5 is out of (0, 1]"),
    "top_p 0": (changed(sampling={"top_p": 0}), "INVALID_FIELD", "sampling.top_p: 0.0 is out of (0, 1]"),
    "temperature NaN": (
        changed(sampling={"temperature": float("nan")}), "INVALID_FIELD", "sampling.temperature: nan is out"),
    "temperature 1e9": (
        changed(sampling={"temperature": 1e9}), "INVALID_FIELD", "sampling.temperature: 1e+09"),
    "temperature -1": (changed(sampling={"temperature": -1}), "INVALID_FIELD", "sampling.temperature: -1.0"),
    "top_k -5": (changed(sampling={"top_k": 2**32 - 5}), "INVALID_FIELD", "sampling.top_k: 4294967291"),
    "stop id": (
        request([5], stop_token_ids=[VOCAB]), "TOKEN_OUT_OF_VOCABULARY", "stopping.stop_token_ids[0]: "),
    "bias id": (
        changed(sampling={"logit_bias": {VOCAB: 1.0}}), "TOKEN_OUT_OF_VOCABULARY", "sampling.logit_bias: "),
    "bias": (
        changed(sampling={"logit_bias": {5: 101}}), "INVALID_FIELD", "sampling.logit_bias[5]: 101.0 is out"),
    "a grammar where no EOS id is known": (
        changed(response_format={"regex": "a"}), "NO_EOS_TOKEN", "response_format.regex: "),
    "n 0": (changed(n=0), "INVALID_FIELD", "n: 0 is out of [1, 128]"),
    "n 1e6": (changed(n=1_000_000), "INVALID_FIELD", "n: 1000000 is out of [1, 128]"),
    "n over the rows of a step": (changed(n=17), "EXCEEDS_ROWS", "n: 17 sequences, a step has at most 16"),
    "an empty stop string": (request([5], stop=[""]), "INVALID_FIELD", "stopping.stop[0]: is empty"),
    "queue_timeout 0": (changed(queue_timeout=duration_pb2.Duration()), "INVALID_FIELD", "queue_timeout: "),
    "larger than the pool": (request([5], POOL_TOKENS + 1), "EXCEEDS_KV_POOL", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_a20_bad_input_is_refused_and_the_next_request_works(rig: Rig, name: str) -> None:
    message, reason, start = CASES[name]
    for call in (rig.service.run(message), rig.service.inference.GenerateOnce(once(message))):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() in REFUSALS
        assert reason_of(refused.value) == reason
        assert str(refused.value.details()).startswith(start)
    await assert_works(rig)


async def test_a20_a_prompt_one_below_the_limit_runs(rig: Rig) -> None:
    prompt = prompt_of(POOL_TOKENS - 1)
    assert (await rig.service.generate(prompt, 1)).tokens == wanted(prompt, 1)
    assert (await rig.service.generate(prompt, 2)).tokens == wanted(prompt, 2)


async def test_a20_a_live_id_is_refused_and_its_owner_goes_on(rig: Rig) -> None:
    prompt = prompt_of(5)
    rig.fake.hold()
    first = request(prompt, 8, request_id="mine")
    task = asyncio.create_task(rig.service.run(first))
    await rig.fake.wait_for_plans(1)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await rig.service.run(request(prompt, 8, request_id="mine"))
    assert refused.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert reason_of(refused.value) == "REQUEST_ID_LIVE"
    await rig.fake.release()
    assert (await task).tokens == wanted(prompt, 8)
    assert (await rig.service.run(request(prompt, 8, request_id="mine"))).tokens == wanted(prompt, 8)


async def test_a20_an_id_of_any_printable_characters_names_a_request(rig: Rig) -> None:
    call = rig.service.inference.Generate(request(prompt_of(5), 2, request_id="日本 🎉é 100%"))
    assert unquote(str(dict(await call.initial_metadata())["x-request-id"])) == "日本 🎉é 100%"
    assert [event async for event in call][-1].finished.usage.completion_tokens == 2


async def test_a20_a_bad_request_in_a_batch_costs_the_others_nothing(rig: Rig) -> None:
    good = request(prompt_of(5), 4, request_id="good")
    bad = request(prompt_of(5), 0, request_id="bad")
    texts, errors = [], []
    async for answer in rig.service.inference.GenerateBatch(
        iter([pb.GenerateBatchRequest(generate=message) for message in (bad, good)])
    ):
        for event in answer.events:
            texts += event.delta.token_ids
            if event.WhichOneof("event") == "error":
                errors.append((event.request_id, event.error.reason, event.error.code))
    assert errors == [("bad", "INVALID_FIELD", grpc.StatusCode.INVALID_ARGUMENT.value[0])]
    assert texts == wanted(prompt_of(5), 4)


async def test_a20_two_thousand_random_requests_each_followed_by_a_good_one(rig: Rig) -> None:
    draw = random.Random(20)
    codes: dict[str, int] = {}
    for number in range(2000):
        message = pb.GenerateRequest()
        fill(draw, message, draw.choice([0.08, 0.3]))
        if draw.random() < 0.5:
            message.token_ids.ids[:] = [5, 6, 7]
        if not message.stopping.HasField("max_tokens"):
            message.stopping.max_tokens = 2
        code = await code_of(rig, message)
        codes[code] = codes.get(code, 0) + 1
        assert (await rig.service.generate([5, 6, 7], 1)).tokens == wanted([5, 6, 7], 1)
        if number % 100 == 0:
            await assert_works(rig)
    assert set(codes) <= {"OK", *(code.name for code in REFUSALS), "QUEUE_TIMEOUT"}
    assert min(codes["OK"], codes["INVALID_ARGUMENT"]) > 50
    await assert_works(rig)


async def code_of(rig: Rig, message: pb.GenerateRequest) -> str:
    """How a request ended: its status, or QUEUE_TIMEOUT for a timeout of the request's own."""
    try:
        await rig.service.inference.GenerateOnce(once(message), timeout=30)
    except grpc.aio.AioRpcError as error:
        reason = reason_of(error)
        return reason if reason == "QUEUE_TIMEOUT" else error.code().name
    return "OK"


async def assert_works(rig: Rig) -> None:
    """A good request gives the right tokens, no block stays held, and the pool's states add up."""
    prompt = prompt_of(7)
    assert (await rig.service.generate(prompt, 2)).tokens == wanted(prompt, 2)
    assert await rig.service.ready()
    stats = await rig.service.wait_idle()
    assert stats.free_blocks + stats.evictable_blocks + stats.fenced_blocks == stats.num_blocks


def once(message: pb.GenerateRequest) -> pb.GenerateOnceRequest:
    return pb.GenerateOnceRequest(request=message)

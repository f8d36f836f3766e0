"""A22: clients that send slowly, too much or nothing, that read slowly or not at all, or that vanish.

Each attack is made on plain sockets, while somebody else is served with the right tokens.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from gateway.body_room import BODIES, SMALL_BYTES
from gateway.connection import MAX_HEAD_BYTES
from scheduler_svc.text import TextModel
from tests.e2e.gateway.answers import COMPLETIONS
from tests.e2e.gateway.door import Door, allow_many_sockets, door_at, rest
from tests.e2e.processes import Processes, ServiceProcess
from tests.e2e.rig import SMALL, SchedulerSeat, prompt_of, rig_at, seat_scheduler, until, wanted
from tests.e2e.service import PATIENCE

HEAD = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
LARGEST = 4 * SMALL_BYTES
SECONDS = 2.0
ROOMY = replace(SMALL, num_blocks=16_384, max_batch_tokens=2048, max_batch_seqs=256)


@pytest.fixture(scope="module")
def own(shared_processes: Processes, seat: SchedulerSeat) -> ServiceProcess:
    """A gateway that loses patience soon."""
    bounds = (
        "--body-seconds",
        str(SECONDS),
        "--stall-seconds",
        str(SECONDS),
        "--max-body-bytes",
        str(LARGEST),
    )
    return shared_processes.gateway(seat.process.address, *bounds)


@pytest.fixture
async def hurried(own: ServiceProcess, seat: SchedulerSeat, text: TextModel) -> AsyncIterator[Door]:
    async with rig_at(seat, ROOMY) as rig, door_at(own, rig, text) as door:
        yield door


@asynccontextmanager
async def connected(
    door: Door, receive_buffer: int = 0
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = door.process.address.rpartition(":")
    with socket.socket() as sock:
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 14)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def until_ended(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, pause: float = 0.0
) -> None:
    """Sends the data again and again, until the connection is ended."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while not reader.at_eof():
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(pause)


async def served(door: Door, seed: int = 1) -> None:
    """Somebody else gets the right tokens."""
    prompt = prompt_of(6, seed)
    body = {"prompt": prompt, "max_tokens": 5, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    answer = await door.post(COMPLETIONS, body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["token_ids"] == wanted(prompt, 5)


def long_stream(seed: int, **fields: Any) -> bytes:
    """A request whose answer is larger than the buffers of any system on its way."""
    prompts = [prompt_of(6, 1000 * seed + number) for number in range(100)]
    body = {"prompt": prompts, "max_tokens": 400, "temperature": 0, "ignore_eos": True, "logprobs": 5}
    content = json.dumps({"stream": True, **body, **fields}).encode()
    return (HEAD + f"content-length: {len(content)}\r\n\r\n").encode() + content


async def test_a_connection_that_sends_nothing_or_too_slowly_is_408(hurried: Door) -> None:
    async def trickle(writer: asyncio.StreamWriter, data: bytes) -> None:
        for byte in data:
            writer.write(bytes([byte]))
            await asyncio.sleep(SECONDS / 10)

    async with connected(hurried) as (quiet, _), connected(hurried) as (slow, writer):
        sending = asyncio.create_task(trickle(writer, HEAD.encode()))
        await served(hurried)
        for reader in (quiet, slow):
            answer = await rest(reader)
            assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert b"the request's head was not complete after 2 s" in answer
        sending.cancel()
    await served(hurried)


async def test_a_second_head_on_a_connection_is_timed_too(hurried: Door) -> None:
    async with connected(hurried) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"GET /heal")
        assert (await rest(reader)).startswith(b"HTTP/1.1 408 ")


async def test_a_head_without_end_is_431_and_holds_no_memory(hurried: Door) -> None:
    gateway = psutil.Process(hurried.process.pid)
    before = gateway.memory_info().rss
    for start in (b"GET /" + b"a" * 100, HEAD.encode() + b"x: ", HEAD.encode()):
        async with connected(hurried) as (reader, writer):
            writer.write(start)
            await until_ended(reader, writer, b"y: z\r\n" * 2000 if start.endswith(b"\n") else b"a" * 12_000)
            answer = await rest(reader)
            assert not answer or answer.startswith(b"HTTP/1.1 431 ")
            assert not answer or f"more than {MAX_HEAD_BYTES} bytes".encode() in answer
        await served(hurried)
    assert gateway.memory_info().rss - before < 32 << 20


@pytest.mark.parametrize("pause", [0.0, 0.1], ids=["whole", "pieces"])
async def test_a_head_that_is_just_small_enough_is_taken(hurried: Door, pause: float) -> None:
    for size, status in ((MAX_HEAD_BYTES - 2, b"200"), (MAX_HEAD_BYTES - 1, b"431")):
        async with connected(hurried) as (reader, writer):
            line = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\nlong: "
            head = line + b"a" * (size - len(line))  # and the end of the line
            if pause:
                writer.write(head)
                await asyncio.sleep(pause)
            writer.write(b"\r\n\r\n" if pause else head + b"\r\n\r\n")
            assert (await rest(reader)).startswith(b"HTTP/1.1 " + status)


async def test_a_head_over_the_limit_that_comes_whole_is_431(hurried: Door) -> None:
    async with connected(hurried) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nlong: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n")
        answer = await rest(reader)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert f"more than {MAX_HEAD_BYTES} bytes".encode() in answer


async def test_headers_without_end_after_a_body_are_431_and_kept_nowhere(
    hurried: Door, own: ServiceProcess
) -> None:
    gateway = psutil.Process(own.pid)
    before = gateway.memory_info().rss
    async with connected(hurried) as (reader, writer):
        writer.write((HEAD + "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n").encode())
        answers = asyncio.create_task(rest(reader))
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                writer.write(b"a: b\r\n" * 20_000)
                await writer.drain()
        answer = await answers
    assert not answer or answer.startswith(b"HTTP/1.1 431 ")
    assert gateway.memory_info().rss - before < 32 << 20
    await served(hurried)


@pytest.mark.parametrize(
    ("rest_of_it", "words"),
    [
        ("transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "transfer-encoding is "),
        ("transfer-encoding: gzip\r\n\r\n{}", ""),
        ("transfer-encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", ""),
        ("transfer-encoding: chunked\r\n\r\nzz\r\n{}", "the request is not valid HTTP/1.1"),
    ],
)  # fmt: skip
async def test_a_body_that_cannot_be_read_is_400_before_anything_was_answered(
    hurried: Door, rest_of_it: str, words: str
) -> None:
    async with connected(hurried) as (reader, writer):
        writer.write((HEAD + rest_of_it).encode())
        answer = await rest(reader)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert words.encode() in answer
    assert answer.count(b"HTTP/1.1 400") == 1
    await served(hurried)


async def test_what_is_no_http_behind_a_good_request_does_not_take_its_answer(hurried: Door) -> None:
    """The first is whole and at work; the connection ends without an answer to the second."""
    content = b'{"prompt": [5, 6], "max_tokens": 200, "ignore_eos": true, "stream": true}'
    async with connected(hurried) as (reader, writer):
        writer.write((HEAD + f"content-length: {len(content)}\r\n\r\n").encode() + content)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"nonsense\r\n\r\n")
        assert b"HTTP/1.1 400" not in await rest(reader)
    await served(hurried)


async def test_a_body_that_goes_on_after_its_refusal_ends_with_the_connection(hurried: Door) -> None:
    """415 is said before the body is read; what still comes is neither kept nor waited for without end."""
    async with connected(hurried) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n")
        assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 415 ")
        await until_ended(reader, writer, b"x", SECONDS / 20)
    await served(hurried)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_trickled_body_is_408_with_a_length_and_in_chunks(hurried: Door, chunked: bool) -> None:
    how = "transfer-encoding: chunked" if chunked else "content-length: 1000"
    async with connected(hurried) as (reader, writer):
        writer.write(f"{HEAD}{how}\r\n\r\n".encode())

        async def trickle() -> None:
            while True:
                writer.write(b"1\r\n \r\n" if chunked else b" ")
                await asyncio.sleep(SECONDS / 20)

        sending = asyncio.create_task(trickle())
        await served(hurried)
        assert b"the body was not complete after 2 s" in await rest(reader)
        sending.cancel()


async def test_large_bodies_that_do_not_end_leave_room_for_small_ones(
    hurried: Door, processes: Processes, text: TextModel
) -> None:
    """And are 503 past what is held at once, until those that hold it are given up: later than all have
    come.
    """
    bounds = ("--body-seconds", "6", "--max-body-bytes", str(LARGEST))
    gateway = await asyncio.to_thread(processes.gateway, hurried.rig.seat.process.address, *bounds)
    async with door_at(gateway, hurried.rig, text) as door:
        await _large_bodies(door)


async def _large_bodies(door: Door) -> None:
    content = b" " * (LARGEST - 1)
    head = f"{HEAD}content-length: {LARGEST}\r\n\r\n".encode()
    attackers = BODIES + 8
    async with asyncio.TaskGroup() as group:

        async def attack() -> bytes:
            async with connected(door) as (reader, writer):
                writer.write(head + content)
                return await rest(reader)

        attacks = [group.create_task(attack()) for _ in range(attackers)]
        await served(door)
    answers = [attack.result() for attack in attacks]
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503 ")]
    assert refused
    for answer in refused:
        assert b"\r\nretry-after: 1\r\n" in answer
        assert b'"code":"bodies_full"' in answer
    assert sum(answer.startswith(b"HTTP/1.1 408 ") for answer in answers) == attackers - len(refused)
    again = await door.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1, "user": "u" * (LARGEST - 200)})
    assert again.status_code == 200, again.text


@pytest.mark.parametrize("whole", [False, True], ids=["stream", "whole"])
async def test_who_does_not_read_is_cut_off_and_nobody_else_waits(hurried: Door, whole: bool) -> None:
    fields = {"stream": False, "logprobs": 20, "max_tokens": 200} if whole else {"logprobs": 5}
    async with connected(hurried, receive_buffer=4096) as (reader, writer):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(long_stream(1, **fields) if not whole else closing(long_stream(1, **fields)))
        await hurried.rig.fake.wait_for_plans(3)
        assert is_open(hurried, writer)
        for seed in range(3):
            await served(hurried, seed)
        await hurried.idle()
        async with asyncio.timeout(PATIENCE):
            while is_open(hurried, writer):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    await served(hurried)


def closing(request: bytes) -> bytes:
    return request.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)


def is_open(door: Door, writer: asyncio.StreamWriter) -> bool:
    """Whether the gateway holds the other end of a connection."""
    port = writer.get_extra_info("sockname")[1]
    found = psutil.Process(door.process.pid).net_connections("tcp")
    return any(one.raddr and one.raddr.port == port for one in found)


async def test_who_reads_slowly_but_reads_gets_everything(hurried: Door) -> None:
    """Longer than --stall-seconds in all."""
    async with connected(hurried, receive_buffer=16_384) as (reader, writer):
        writer.write(closing(long_stream(2, logprobs=0)))
        found = b""
        for _ in range(30):
            await asyncio.sleep(SECONDS / 10)
            found += await reader.read(1 << 14)
        found += await rest(reader)
    assert found.rstrip(b"\r\n0").endswith(b"data: [DONE]")
    assert found.count(b'"finish_reason":"length"') == 100
    await hurried.idle()


async def test_who_vanishes_with_another_request_behind_the_first_leaves_neither(hurried: Door) -> None:
    hurried.rig.fake.step_delay = 0.05
    async with connected(hurried) as (_, writer):
        content = b'{"prompt": [5, 6, 7], "max_tokens": 400, "ignore_eos": true}'
        writer.write(((HEAD + f"content-length: {len(content)}\r\n\r\n").encode() + content) * 3)
        await hurried.rig.fake.wait_for_plans(len(hurried.rig.fake.plans) + 5)
    await hurried.idle()
    await served(hurried)


async def test_who_vanishes_mid_stream_leaves_nothing(hurried: Door) -> None:
    async with connected(hurried) as (reader, writer):
        writer.write(long_stream(3))
        await reader.readuntil(b"data: ")
        hurried.rig.fake.hold()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
        plans = len(hurried.rig.fake.plans)
    await hurried.idle()
    await hurried.rig.fake.release()
    assert len(hurried.rig.fake.plans) - plans <= 4, "those in flight"
    await served(hurried)


async def test_1000_connections_that_do_nothing_keep_nobody_out_and_leave_no_file(hurried: Door) -> None:
    allow_many_sockets(1000)
    gateway = psutil.Process(hurried.process.pid)
    await served(hurried)
    before, sent = gateway.num_fds(), 0
    async with asyncio.TaskGroup() as group:

        async def idle() -> bytes:
            nonlocal sent
            async with connected(hurried) as (reader, writer):
                writer.write(HEAD[:20].encode())
                sent += 1
                return await rest(reader)

        crowd = [group.create_task(idle()) for _ in range(1000)]
        await until(lambda: sent == 1000)
        for seed in range(5):
            await served(hurried, seed)
    assert {one.result()[:13] for one in crowd} == {b"HTTP/1.1 408 "}
    async with asyncio.timeout(PATIENCE):
        while gateway.num_fds() > before:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await served(hurried)


async def test_a_full_queue_says_when_to_try_again_and_then_takes_it(
    processes: Processes, tiny_llama: Path, text: TextModel
) -> None:
    """Those who were let in get their tokens, and who comes again after Retry-After gets them too."""
    seat = seat_scheduler(processes, tiny_llama, "--max-queue-requests", "4")
    gateway = processes.gateway(seat.process.address)
    async with rig_at(seat) as rig, door_at(gateway, rig, text) as door:
        rig.fake.hold()
        refused = 0

        async def insistent(seed: int) -> None:
            nonlocal refused
            prompt = prompt_of(6, seed)
            body = {"prompt": prompt, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
            while (
                answer := await door.post(COMPLETIONS, body | {"return_token_ids": True})
            ).status_code == 429:
                refused += 1
                await asyncio.sleep(float(answer.headers["retry-after"]))
            assert answer.json()["choices"][0]["token_ids"] == wanted(prompt, 5)

        calls = [asyncio.create_task(insistent(seed)) for seed in range(60)]
        await until(lambda: refused > 0)
        await rig.fake.release()
        await asyncio.gather(*calls)
        await door.idle()

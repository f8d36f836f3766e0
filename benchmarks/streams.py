"""Tokens per second through the scheduler's streams, in front of a worker that computes nothing.

Owns the processes, the load and the table; knows no part of the service. Invariant: scheduler, worker,
gateway and client are processes of their own as in production, and the last line of the output is one JSON
object.

    python -m benchmarks.streams [--requests 256] [--tokens 400] [--runs 3]

batch: all requests on one GenerateBatch stream, token ids only. text: the same with text. streams: one
Generate stream a request. http: one stream of server-sent events a request, through the gateway. CPU: the
scheduler's processor time for one token, in microseconds; scheduler_cpu_us_per_token is that of batch. The
target is 30,000 tokens a second through one batch stream on two cores, which client and worker share.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc

from benchmarks.null_worker import VOCAB
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc
from tests.fixtures.tiny_model import write_tiny_model

MODES = ("batch", "text", "streams", "http")
TARGET = 30_000
PROMPT_TOKENS = 64
TICKS_PER_SECOND = 100


def start(*arguments: str) -> tuple["subprocess.Popen[bytes]", str]:
    """A service process and the address of its serving line."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{arguments[0]} did not start")
    return process, json.loads(line)["listen"]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def requests(mode: str, count: int, tokens: int, run: int) -> list[pb.GenerateRequest]:
    draw = random.Random(run)
    return [
        pb.GenerateRequest(
            request_id=f"{mode}-{run}-{number}",
            token_ids=pb.TokenIds(ids=draw.choices(range(3, VOCAB), k=PROMPT_TOKENS)),
            stopping=pb.StoppingOptions(max_tokens=tokens, ignore_eos=True),
            output=pb.OutputOptions(token_ids_only=mode != "text"),
        )
        for number in range(count)
    ]


async def through_streams(stub: Any, messages: list[pb.GenerateRequest]) -> int:
    async def one(message: pb.GenerateRequest) -> int:
        return sum([len(event.delta.token_ids) async for event in stub.Generate(message)])

    return sum(await asyncio.gather(*map(one, messages)))


async def through_batch(stub: Any, messages: list[pb.GenerateRequest]) -> int:
    call, total = stub.GenerateBatch(), 0

    async def put() -> None:
        for message in messages:
            await call.write(pb.GenerateBatchRequest(generate=message))
        await call.done_writing()

    writer = asyncio.create_task(put())
    while (answer := await call.read()) is not grpc.aio.EOF:
        total += sum(len(event.delta.token_ids) for event in answer.events)
    await writer
    return total


async def through_http(gateway: str, messages: list[pb.GenerateRequest]) -> int:
    """Counts what the usage at the end of each stream says."""

    async def one(message: pb.GenerateRequest) -> int:
        body = {
            "prompt": list(message.token_ids.ids),
            "max_tokens": message.stopping.max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        content = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(*gateway.rsplit(":", 1), limit=1 << 22)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {gateway}\r\nconnection: close\r\n"
        kind = f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write((head + kind).encode() + content)
        last = b""
        while data := await reader.read(1 << 16):
            last = (last + data)[-4096:]
        writer.close()
        return int(last.rpartition(b'"completion_tokens":')[2].partition(b",")[0])

    return sum(await asyncio.gather(*map(one, messages)))


async def measure(address: str, gateway: str, pid: int, arguments: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        await stub.GenerateOnce(
            pb.GenerateOnceRequest(request=requests("batch", 1, 1, -1)[0]), wait_for_ready=True, timeout=30
        )
        for mode in MODES:
            best = (0.0, 0.0)
            for run in range(arguments.runs):
                messages = requests(mode, arguments.requests, arguments.tokens, run)
                used, began = cpu_seconds(pid), time.perf_counter()
                if mode == "http":
                    tokens = await through_http(gateway, messages)
                else:
                    through = through_streams if mode == "streams" else through_batch
                    tokens = await through(stub, messages)
                took = time.perf_counter() - began
                cpu = (cpu_seconds(pid) - used) / tokens * 1e6
                best = max(best, (tokens / took, cpu))
            found[f"{mode}_tok_s"] = round(best[0])
            if mode == "batch":
                found["scheduler_cpu_us_per_token"] = round(best[1], 1)
            print(f"{mode:8} {best[0]:10.0f} tok/s {best[1]:8.1f} us of scheduler CPU a token")
    reached = "reached" if found["batch_tok_s"] >= TARGET else "missed"
    print(f"target of {TARGET} tok/s through one batch stream: {reached}")
    return found


async def connected(address: str) -> None:
    """Waits until the scheduler has its worker."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        async with asyncio.timeout(30):
            while True:
                try:
                    await stub.GetModelInfo(pb.GetModelInfoRequest())
                    return
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.05)


async def run(arguments: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "model")
        socket = f"unix:{folder}/worker.sock"
        worker, _ = start("benchmarks.null_worker", "--listen", socket)
        flags = ["--model", str(model), "--worker", socket, "--listen", "127.0.0.1:0", "--metrics-port", "0"]
        scheduler, address = start("scheduler_svc", *flags)
        gateway, listen = start("gateway", "--server", address, "--listen", "127.0.0.1:0")
        try:
            await connected(address)
            return await measure(address, listen, scheduler.pid, arguments)
        finally:
            for process in (gateway, scheduler, worker):
                process.terminate()
                process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens per second through the scheduler's streams.")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--runs", type=int, default=3)
    print(json.dumps(asyncio.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()

"""The pool page under load: 100,000 blocks that change ten times a second, in a real Chromium.

Owns the load and the numbers; knows no part of the page but its global `octavo`. Invariant: scheduler,
worker and browser are processes of their own, and the last line of the output is one JSON object.

    python -m benchmarks.bench_pool_page [--blocks 100000] [--seconds 10]

The worker computes nothing, the scheduler and its block manager are the real ones. frame: from one animation
frame to the next while updates arrive (16.7 ms when nothing is late). draw: the script's part of a frame.
cpu_ms_an_update: processor time of the tab's main thread, which other programs cannot stretch.
update: characters of an update on the stream, read by a second viewer. scheduler_cpu: processor seconds of
the scheduler in a second, with and without a viewer.
"""

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc

from benchmarks.null_worker import VOCAB
from benchmarks.streams import cpu_seconds
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc
from tests.browser.chromium import chromium, tab
from tests.e2e.processes import Processes
from tests.e2e.test_pool_page import read_update, stream
from tests.fakes.pool_reader import PoolReader
from tests.fixtures.tiny_model import write_tiny_model

BLOCK_SIZE = 16
ROWS = 256
MEASURE = """seconds => new Promise(done => {
  const frames = [], start = performance.now(), first = octavo.live.version;
  let last = start;
  const tick = now => {
    frames.push(now - last);
    last = now;
    if (now - start < seconds * 1000) requestAnimationFrame(tick);
    else done({frames, updates: octavo.live.version - first, seconds: (now - start) / 1000,
               draws: octavo.draws.splice(0)});
  };
  requestAnimationFrame(tick);
})"""


class Load:
    """Keeps ROWS requests running whose contexts fill the pool, and starts a new one when one ends."""

    def __init__(self, address: str, blocks: int) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._stub: Any = inference_pb2_grpc.InferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._draw = random.Random(1)
        self._length = int(1.1 * blocks * BLOCK_SIZE / ROWS)
        self._common = self._draw.choices(range(3, VOCAB), k=40 * BLOCK_SIZE)
        self._tasks = [asyncio.create_task(self._one(number)) for number in range(ROWS + 32)]

    async def _one(self, number: int) -> None:
        count = 0
        while True:
            length = self._draw.randrange(self._length // 2, self._length)
            own = self._draw.choices(range(3, VOCAB), k=length)
            request = pb.GenerateRequest(
                request_id=f"load-{number}-{count}",
                token_ids=pb.TokenIds(ids=self._common + own if number % 3 else own),
                stopping=pb.StoppingOptions(max_tokens=self._draw.randrange(50, 400), ignore_eos=True),
                output=pb.OutputOptions(token_ids_only=True),
            )
            async for _ in self._stub.Generate(request):
                pass
            count += 1

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await asyncio.gather(*self._tasks)
        await self._channel.close()


async def main_thread(script: Any) -> float:
    """Processor seconds of the tab's main thread so far: scripts, layout and painting."""
    metrics = (await script.send("Performance.getMetrics"))["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def quantile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 1)


def update_sizes(port: int, seconds: float) -> list[int]:
    """Characters of each update that a second viewer is told."""
    sizes, reader, end = [], PoolReader(), time.monotonic() + seconds
    with stream(port) as answer:
        while time.monotonic() < end:
            sizes.append(read_update(answer, reader))
    return sizes


async def measure(blocks: int, seconds: float) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp())
    processes = Processes(folder)
    try:
        model = await asyncio.to_thread(write_tiny_model, folder)
        worker = await asyncio.to_thread(
            processes.start, "worker", "benchmarks.null_worker", "--num-blocks", str(blocks),
            "--block-size", str(BLOCK_SIZE), "--step-seconds", "0.02",
        )  # fmt: skip
        scheduler = await asyncio.to_thread(
            processes.scheduler, model, worker.address, "--max-num-seqs", str(ROWS),
            "--max-num-batched-tokens", "8192",
        )  # fmt: skip
        load = Load(scheduler.address, blocks)
        try:
            return await _measure(scheduler.pid, int(scheduler.serving["metrics_port"]), seconds)
        finally:
            await load.end()
    finally:
        await asyncio.to_thread(processes.close)


async def _measure(pid: int, port: int, seconds: float) -> dict[str, Any]:
    await asyncio.sleep(15)  # the pool fills
    before = cpu_seconds(pid)
    await asyncio.sleep(seconds)
    alone = (cpu_seconds(pid) - before) / seconds
    async with chromium() as browser, tab(browser, f"http://127.0.0.1:{port}/pool/") as view:
        await view.wait_for_function("octavo.live.whole && octavo.live.gauges.active > 0", timeout=60_000)
        await asyncio.sleep(1)
        script = await view.context.new_cdp_session(view)
        await script.send("Performance.enable", {"timeDomain": "threadTicks"})
        before, busy = cpu_seconds(pid), await main_thread(script)
        await view.evaluate("octavo.draws.splice(0)")
        seen = await view.evaluate(MEASURE, seconds)
        watched, busy = (cpu_seconds(pid) - before) / seconds, await main_thread(script) - busy
        sizes = await asyncio.to_thread(update_sizes, port, seconds)
        await view.screenshot(path="build/pool-page-100k.png")
        gauges = await view.evaluate("octavo.live.gauges")
    return {
        "blocks": sum(gauges[name] for name in ("free", "evictable", "active", "fenced")),
        "active": gauges["active"],
        "running": gauges["running"],
        "updates_per_second": round(seen["updates"] / seen["seconds"], 1),
        "frame_ms": {"p50": quantile(seen["frames"], 0.5), "p95": quantile(seen["frames"], 0.95)},
        "cpu_ms_an_update": round(1000 * busy / seen["updates"], 1),
        "draw_ms": {"p50": quantile(seen["draws"], 0.5), "p95": quantile(seen["draws"], 0.95)},
        "update_characters": {"p50": quantile(sizes, 0.5), "max": max(sizes)},
        "scheduler_cpu": {"nobody_watches": round(alone, 3), "one_watches": round(watched, 3)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The pool page with many blocks, in a real Chromium.")
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.blocks, arguments.seconds))
    for name, value in found.items():
        print(f"{name:20} {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

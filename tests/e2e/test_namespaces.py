"""A08: namespaces and opting out at every hop, the flush, and those who follow the index over gRPC."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from octavo.errors import reason_of
from octavo.v1 import kv_cache_pb2 as kv
from octavo_client import Client
from octavo_client.kv_mirror import KvMirror
from tests.e2e.metrics import scrape
from tests.e2e.processes import Processes
from tests.e2e.rig import Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, until
from tests.e2e.service import PATIENCE, request

SALT = "tenant-one-secret"
PROMPT = prompt_of(17, 8)


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    log = str(shared_processes.folder / "log")
    return seat_scheduler(shared_processes, tiny_llama, "--record", log)


@asynccontextmanager
async def watching(rig: Rig, mirror: KvMirror) -> AsyncIterator[KvMirror]:
    """The mirror follows the service."""

    async def follow() -> None:
        async for message in rig.service.kv.WatchKvEvents(mirror.request()):
            mirror.take(message)

    task = asyncio.create_task(follow())
    await until(lambda: mirror.complete)
    yield mirror
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def cached(rig: Rig, **options: object) -> int:
    return (await rig.service.run(request(PROMPT, 1, **options))).cached  # type: ignore[arg-type]


async def same_as_pool(rig: Rig, mirror: KvMirror) -> None:
    """The mirror holds the blocks that the pool map says are findable."""
    pool = await rig.service.kv.GetPoolMap(kv.GetPoolMapRequest())
    found = {("device", block) for block, is_cached in enumerate(pool.cached) if is_cached}
    await until(lambda: mirror.blocks.keys() == found)


async def test_a08_two_tenants_send_the_same_prompt_twice_each(seat: SchedulerSeat) -> None:
    async with rig_at(seat) as rig:
        numbers = [await cached(rig, cache_salt=salt) for salt in (SALT, SALT, "b", "b", "", "")]
        assert numbers == [0, 16, 0, 16, 0, 16]


async def test_a08_the_salt_reaches_the_core_from_the_typed_client_and_shows_nowhere(
    seat: SchedulerSeat,
) -> None:
    async with rig_at(seat) as rig:
        async with watching(rig, KvMirror()) as mirror:

            def ask(salt: str) -> int:
                with Client(seat.process.address) as client:
                    done = client.generate(token_ids=PROMPT, max_tokens=1, cache_salt=salt)
                    return done.usage.cached_prompt_tokens

            assert [await asyncio.to_thread(ask, salt) for salt in (SALT, SALT, "x")] == [0, 16, 0]
            await rig.service.kv.FlushPrefixCache(kv.FlushPrefixCacheRequest(cache_salt=SALT))
            await same_as_pool(rig, mirror)
            shown = repr(mirror.blocks)
        sent = b"".join(message.SerializeToString() for message in rig.fake.messages)
        assert SALT.encode() not in sent
        assert SALT not in shown
    page = await asyncio.to_thread(scrape_text, seat)
    assert SALT not in page
    assert SALT not in seat.process.err.read_text()


def scrape_text(seat: SchedulerSeat) -> str:
    return repr(scrape(seat.metrics_url))


async def test_a_request_that_opts_out_neither_reads_nor_publishes(seat: SchedulerSeat) -> None:
    async with rig_at(seat) as rig:
        assert await cached(rig, use_prefix_cache=False) == 0
        assert (await rig.service.wait_idle()).prefix_index_entries == 0
        assert await cached(rig) == 0
        assert await cached(rig, use_prefix_cache=False) == 0
        assert await cached(rig) == 16


async def test_a_request_for_prompt_log_probabilities_does_not_read_the_cache(seat: SchedulerSeat) -> None:
    async with rig_at(seat) as rig:
        assert await cached(rig) == 0
        message = request(PROMPT, 1)
        message.output.prompt_logprobs = 0
        assert (await rig.service.run(message)).cached == 0
        computed = sum(len(plan.input_ids) for plan in rig.fake.plans)
        assert computed == 2 * len(PROMPT), "every position is computed, for each has its log-probability"
        assert await cached(rig) == 16


async def test_a_flush_forgets_one_namespace_or_all_and_hurts_no_running_request(seat: SchedulerSeat) -> None:
    async with rig_at(seat) as rig:
        for salt in ("a", "b"):
            await cached(rig, cache_salt=salt)
        rig.fake.step_delay = 0.01
        reply, task = await rig.begin(request(PROMPT, 30, cache_salt="a"))
        one = await rig.service.kv.FlushPrefixCache(kv.FlushPrefixCacheRequest(cache_salt="a"))
        assert one.blocks_forgotten >= 4
        rig.fake.step_delay = 0
        assert await cached(rig, cache_salt="b") == 16
        assert await cached(rig, cache_salt="a") == 0
        await task
        assert reply.reason == "LENGTH"
        everything = await rig.service.kv.FlushPrefixCache(kv.FlushPrefixCacheRequest())
        assert everything.blocks_forgotten >= 8
        stats = await rig.service.wait_idle()
        assert (stats.prefix_index_entries, stats.free_blocks) == (0, stats.num_blocks)
        with pytest.raises(grpc.aio.AioRpcError, match="cache_salt: 257 characters") as refused:
            await rig.service.kv.FlushPrefixCache(kv.FlushPrefixCacheRequest(cache_salt="x" * 257))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_who_follows_holds_the_index_across_evictions_flushes_and_workers(seat: SchedulerSeat) -> None:
    async with rig_at(seat) as rig:
        mirror = KvMirror()
        async with watching(rig, mirror):
            for turn in range(6):
                await rig.service.run_all([request(prompt_of(13 + i, 10 * turn + i), 9) for i in range(6)])
                await same_as_pool(rig, mirror)
            await rig.service.kv.FlushPrefixCache(kv.FlushPrefixCacheRequest())
            await same_as_pool(rig, mirror)
            await rig.service.generate(PROMPT, 3)
            await same_as_pool(rig, mirror)
            assert mirror.blocks
            await rig.fake.restart()
            await until(lambda: not mirror.blocks)
            await rig.service.wait_ready()
            await rig.service.generate(PROMPT, 3)
            await same_as_pool(rig, mirror)
        assert mirror.snapshots == 1
        await rig.service.generate(prompt_of(9, 77), 3)
        async with watching(rig, mirror):
            await same_as_pool(rig, mirror)
        assert mirror.snapshots == 1, "resumed by its number"
        stranger = KvMirror(number=mirror.number, stream_id=mirror.stream_id ^ 1, complete=True)
        async with watching(rig, stranger):
            await same_as_pool(rig, stranger)
        assert stranger.snapshots == 1, "a number of another life of the service"


async def admitted(rig: Rig) -> Any:
    """A reader's stream that is let in, once those of the tests before are noticed to have gone."""
    async with asyncio.timeout(PATIENCE):
        while True:
            call = rig.service.kv.WatchKvEvents(kv.WatchKvEventsRequest())
            try:
                await call.read()
                return call
            except grpc.aio.AioRpcError as error:
                if reason_of(error) != "TOO_MANY_READERS":
                    raise
            await asyncio.sleep(0.02)


async def test_more_readers_than_allowed_are_refused(seat: SchedulerSeat) -> None:
    async with rig_at(seat) as rig:
        calls = [await admitted(rig) for _ in range(16)]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rig.service.kv.WatchKvEvents(kv.WatchKvEventsRequest()).read()
        assert reason_of(refused.value) == "TOO_MANY_READERS"
        for call in calls:
            call.cancel()

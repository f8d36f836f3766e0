"""A01, A03, A08, A24, A28: the pool's edges as clients see them, with a fake worker."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from octavo.errors import reason_of
from tests.e2e.metrics import scrape
from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, VOCAB, SchedulerSeat, prompt_of, rig_at, seat_scheduler, wanted
from tests.e2e.service import Reply, request
from tests.fakes.fake_worker import FakeSettings

TIGHT = FakeSettings(num_blocks=8, block_size=16, vocab_size=VOCAB, max_model_len=4096)


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama)


async def test_a01_an_abort_while_queued_or_between_chunks_or_after_the_end(seat: SchedulerSeat) -> None:
    async with rig_at(seat, replace(SMALL, max_batch_tokens=16, max_batch_seqs=1)) as rig:
        rig.fake.hold()
        chunked, queued = Reply(), Reply()
        first = asyncio.create_task(
            rig.service.run(request(prompt_of(100), 5, request_id="chunked"), chunked)
        )
        await rig.fake.wait_for_plans(2)  # two of its seven chunks are at the worker
        second = asyncio.create_task(rig.service.run(request(prompt_of(9), 5, request_id="queued"), queued))
        await rig.service.wait_waiting(1)
        assert await rig.abort("queued", "chunked") == ["queued", "chunked"]
        await rig.fake.release()
        await asyncio.gather(first, second)
        for reply in (chunked, queued):
            assert (reply.reason, reply.tokens, reply.text) == ("ABORTED", [], "")
        assert len(rig.fake.plans) <= 3
        done = await rig.service.generate(prompt_of(9), 5, request_id="queued")
        assert done.tokens == wanted(prompt_of(9), 5)
        assert await rig.abort("queued") == []
        await rig.service.wait_idle()


async def test_a03_what_can_never_fit_is_refused_with_the_numbers(seat: SchedulerSeat) -> None:
    async with rig_at(seat, TIGHT) as rig:
        small = [asyncio.create_task(rig.service.generate(prompt_of(20, i), 10)) for i in range(6)]
        for length, max_tokens in ((200, 5), (100, 100)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await rig.service.generate(prompt_of(length), max_tokens)
            assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert reason_of(refused.value) == "EXCEEDS_KV_POOL"
            assert str(length) in (refused.value.details() or "")
            assert "128" in (refused.value.details() or "")
        replies = await asyncio.gather(*small)
        assert [reply.tokens for reply in replies] == [wanted(prompt_of(20, i), 10) for i in range(6)]


async def test_a03_a_sequence_that_outgrows_the_pool_alone_ends_and_the_others_go_on(
    seat: SchedulerSeat,
) -> None:
    async with rig_at(seat, TIGHT) as rig:
        prompt = prompt_of(100)
        tasks = [asyncio.create_task(rig.service.run(request(prompt, None)))]
        tasks += [asyncio.create_task(rig.service.generate(prompt_of(20, i), 10)) for i in range(6)]
        big, *small = await asyncio.gather(*tasks)
        assert big.reason == "KV_POOL"
        assert 28 <= len(big.tokens) <= 29  # 128 slots; the last token needs none of its own
        assert big.tokens == wanted(prompt, len(big.tokens))
        assert [reply.tokens for reply in small] == [wanted(prompt_of(20, i), 10) for i in range(6)]
        await rig.service.wait_idle()


async def test_a08_tenants_never_share(seat: SchedulerSeat) -> None:
    prompt, salts = prompt_of(41), ("tenant-secret-a", "tenant-secret-b", "")
    async with rig_at(seat, SMALL) as rig:
        cached = [
            (await rig.service.generate(prompt, 3, cache_salt=salt)).cached
            for salt in salts
            for _ in range(2)
        ]
        assert cached == [0, 40, 0, 40, 0, 40]
        shown = seat.process.log_end(1 << 20) + str(scrape(seat.metrics_url))
        assert "tenant-secret" not in shown


async def test_a28_without_shared_text_nothing_counts_as_a_hit(seat: SchedulerSeat) -> None:
    async with rig_at(seat, replace(SMALL, num_blocks=24)) as rig:
        before = await rig.service.stats()
        prompts = [prompt_of(20 + i, 500 + i) for i in range(8)]
        replies = await asyncio.gather(
            *await rig.together(rig.service.generate(prompt, 40) for prompt in prompts)
        )
        after = await rig.service.wait_idle()
    assert sum(reply.preemptions for reply in replies) > 0
    assert [reply.cached for reply in replies] == [0] * 8
    assert after.prefix_hit_tokens == before.prefix_hit_tokens
    assert after.prefix_lookup_tokens - before.prefix_lookup_tokens == sum(len(prompt) for prompt in prompts)


async def test_a24_a_plan_of_more_than_4_mib_passes(processes: Processes, tiny_llama: Path) -> None:
    tokens = 1 << 18
    flags = ["--max-num-batched-tokens", str(tokens), "--max-num-seqs", "8"]
    seat = seat_scheduler(processes, tiny_llama, *flags)
    huge = FakeSettings(
        num_blocks=tokens,
        block_size=1,
        vocab_size=VOCAB,
        max_batch_tokens=tokens,
        max_batch_seqs=8,
        max_model_len=tokens,
    )
    async with rig_at(seat, huge) as rig:
        prompt = prompt_of(tokens - 8)
        reply = await rig.service.generate(prompt, 4)
        assert reply.tokens == wanted(prompt, 4)
        assert max(message.ByteSize() for message in rig.fake.messages) > 4 << 20

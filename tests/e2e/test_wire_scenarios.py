"""The scheduler's shell against a fake worker: sessions, deltas, sequences that end or move in flight."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, VOCAB, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, wanted
from tests.e2e.service import request
from tests.fakes.fake_worker import FakeSettings


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama)


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat) as made:
        yield made


async def test_many_requests_get_the_tokens_of_the_pure_function(rig: Rig) -> None:
    prompts = [prompt_of(length) for length in (1, 3, 4, 5, 8, 15, 16, 17, 63, 64, 65, 100)]
    options = [(0.0, 0), (1.0, 7), (0.5, 0)]
    cases = [(prompt, *option) for prompt in prompts for option in options]
    replies = await rig.service.run_all([request(p, 9, temperature=t, seed=s) for p, t, s in cases])
    for (prompt, temperature, seed), reply in zip(cases, replies, strict=True):
        assert reply.tokens == wanted(prompt, 9, temperature, seed)
        assert (reply.reason, reply.completion_tokens, reply.prompt_tokens) == ("LENGTH", 9, len(prompt))
    await rig.service.wait_idle()


async def test_a_worker_of_another_protocol_version_is_refused(seat: SchedulerSeat) -> None:
    async with rig_at(seat) as rig:
        await rig.fake.restart(FakeSettings(protocol_version=2))
        await rig.service.wait_ready(False)
        await asyncio.sleep(0.3)
        assert not await rig.service.ready()
        assert len(rig.fake.sessions) == 1
        await rig.fake.restart(SMALL)
        await rig.service.wait_ready()


async def test_a_stale_epoch_is_refused_by_the_worker_and_asked_anew(seat: SchedulerSeat) -> None:
    async with rig_at(seat) as rig:
        rig.fake.reported_epoch = 1
        await rig.fake.break_stream()
        await rig.service.wait_ready(False)
        await asyncio.sleep(0.3)
        assert len(rig.fake.sessions) == 1
        rig.fake.reported_epoch = None
        await rig.service.wait_ready()
        assert (await rig.service.generate(prompt_of(5), 3)).tokens == wanted(prompt_of(5), 3)


async def test_a_decode_step_is_sent_as_a_delta(rig: Rig) -> None:
    await rig.service.generate(prompt_of(5), 12)
    first, later = rig.fake.messages[0], rig.fake.messages[4]
    assert first.row_setups
    assert (first.base_step, first.same_rows) == (0, False)
    assert later.same_rows
    assert (later.rows, later.query_lens, later.positions, later.input_ids) == (b"", b"", b"", b"")
    assert (later.sample_positions, later.sample_rows, later.no_samples) == (b"", b"", False)
    assert not later.row_setups
    assert len(later.slot_mapping) == 4


@pytest.mark.parametrize("new_life", [False, True])
async def test_after_a_reconnect_everything_is_sent_anew(rig: Rig, new_life: bool) -> None:
    rig.fake.step_delay = 0.02
    runs = [await rig.begin(request(prompt_of(10, seed), 40)) for seed in range(3)]
    rig.fake.step_delay = 0
    await (rig.fake.restart() if new_life else rig.fake.break_stream())
    replies = await asyncio.gather(*(task for _, task in runs))
    assert [reply.tokens for reply in replies] == [wanted(prompt_of(10, seed), 40) for seed in range(3)]
    assert len(rig.fake.sessions) == 2
    restart = [m for m in rig.fake.messages if m.base_step == 0][1]
    assert (restart.step_id, restart.session_id) == (1, rig.fake.sessions[1])
    assert len(restart.row_setups) == 3


async def test_a_stop_found_late_costs_an_overshoot_that_nobody_sees(rig: Rig) -> None:
    prompt = prompt_of(6)
    rig.fake.script(prompt, [10, 11, 12, 13, 14, 15])
    reply = await rig.service.generate(prompt, 20, stop_token_ids=[13])
    assert (reply.tokens, reply.reason, reply.stop_token_id) == ([10, 11, 12, 13], "STOP", 13)
    assert reply.completion_tokens == 4
    sampled = [plan for plan in rig.fake.plans if len(plan.sample_rows)]
    assert 4 <= len(sampled) <= 6  # depth 3: at most two steps too many
    stats = await rig.service.wait_idle()
    # what the overshoot step wrote was not published
    again = await rig.service.generate([*prompt, 10, 11, 12, 13, 99], 4)
    assert again.tokens == wanted([*prompt, 10, 11, 12, 13, 99], 4)
    assert stats.waiting_requests == 0


async def test_a01_an_abort_in_flight_ends_the_stream_and_frees_its_blocks(rig: Rig) -> None:
    reply, task = await rig.begin(request(prompt_of(6), 200, request_id="gone"))
    other, other_task = await rig.begin(request(prompt_of(7), 30))
    await rig.hold()  # steps are in flight now, which have both
    (told,) = [one.output_tokens for one in (await rig.service.stats()).requests if one.request_id == "gone"]
    assert await rig.abort("gone") == ["gone"]
    await rig.fake.release()
    await task
    assert (reply.reason, len(reply.tokens)) == ("ABORTED", told)
    assert reply.tokens == wanted(prompt_of(6), told)
    await other_task
    assert other.tokens == wanted(prompt_of(7), 30)
    assert await rig.abort("gone", "never") == []
    await rig.service.wait_idle()


async def test_rows_are_reused_while_their_old_step_is_in_flight(rig: Rig) -> None:
    prompts = [prompt_of(5, seed) for seed in range(48)]
    for prompt in prompts:
        rig.fake.script(prompt, [20, 21, 22, 13])
    calls = await rig.together(rig.service.generate(p, 30, stop_token_ids=[13]) for p in prompts)
    replies = await asyncio.gather(*calls)
    assert {tuple(reply.tokens) for reply in replies} == {(20, 21, 22, 13)}
    reused = [row for plan in rig.fake.plans for row in plan.released_rows if row in plan.rows]
    assert reused
    await rig.service.wait_idle()


async def test_sequences_are_preempted_in_flight_and_go_on(seat: SchedulerSeat) -> None:
    tight = FakeSettings(num_blocks=14, block_size=4, vocab_size=VOCAB, max_batch_tokens=16, max_batch_seqs=8)
    async with rig_at(seat, tight) as rig:
        rig.fake.step_delay = 0.001
        prompts = [prompt_of(12, seed) for seed in range(4)]
        heat = [0.0, 1.0, 0.0, 1.0]
        calls = await rig.together(
            rig.service.generate(p, 30, temperature=t, seed=5) for p, t in zip(prompts, heat, strict=True)
        )
        replies = await asyncio.gather(*calls)
        for prompt, temperature, reply in zip(prompts, heat, replies, strict=True):
            assert reply.tokens == wanted(prompt, 30, temperature, 5)
        assert sum(reply.preemptions for reply in replies) > 0
        assert all(reply.reason == "LENGTH" for reply in replies)
        await rig.service.wait_idle()


async def test_the_slots_of_a_prompt_are_those_of_its_blocks(rig: Rig) -> None:
    await rig.service.generate(prompt_of(9), 1)
    plan = rig.fake.plans[0]
    slots = [int(plan.table_blocks[p // 4]) * 4 + p % 4 for p in range(9)]
    np.testing.assert_array_equal(plan.slot_mapping, slots)

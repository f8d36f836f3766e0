"""A30: swap end to end, with the fake worker's late acknowledgements and with a real model's tokens."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.metrics import scrape, total
from tests.e2e.processes import Processes
from tests.e2e.rig import VOCAB, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, until, wanted
from tests.e2e.service import Reply, Service
from tests.e2e.test_equality import BLOCK, Bench, cases, crowd, run
from tests.fakes.fake_worker import FakeSettings, FakeWorker

SWAPPING = FakeSettings(
    num_blocks=24, num_host_blocks=96, block_size=4, vocab_size=VOCAB, max_batch_tokens=64, max_batch_seqs=16
)
OUTPUTS = 40


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama, "--preemption", "swap")


PROMPTS = [prompt_of(9 + i, i) for i in range(6)]


async def _begun(rig: Rig) -> list[asyncio.Task[Reply]]:
    """A crowd that does not fit."""
    return await rig.together(
        rig.service.generate(prompt, OUTPUTS, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)
    )


async def _whole(crowd: list[asyncio.Task[Reply]]) -> list[Reply]:
    """What it was told, which is right."""
    replies = await asyncio.gather(*crowd)
    assert [reply.tokens for reply in replies] == [wanted(prompt, OUTPUTS) for prompt in PROMPTS]
    return list(replies)


async def until_swapped(rig: Rig) -> None:
    """Lets the worker answer step by step until a request waits in host memory, and no further."""
    while not scrape(rig.seat.metrics_url)['octavo_requests_waiting{reason="swapped"}']:
        await rig.hold(after=1)


@pytest.mark.parametrize("lag", [0, 1, 5])
async def test_a30_swapped_out_requests_get_the_tokens_of_a_calm_run(seat: SchedulerSeat, lag: int) -> None:
    async with rig_at(seat, replace(SWAPPING, transfer_lag=lag)) as rig:
        before = scrape(seat.metrics_url)
        replies = await _whole(await _begun(rig))
        after = scrape(seat.metrics_url)
        for name in (
            'octavo_preemptions_total{mode="swap",reason="forced"}',
            'octavo_kv_swap_bytes_total{direction="out"}',
            'octavo_kv_block_moves_total{direction="in"}',
        ):
            assert after[name] > before[name], name
        lost = 'octavo_preempted_tokens_total{mode="swap"}'
        assert after[lost] == before[lost]
        assert sum(reply.preemptions for reply in replies) > 0
        await rig.service.wait_idle()
        await until(lambda: scrape(seat.metrics_url)['octavo_kv_blocks{device="0",state="fenced"}'] == 0)
        idle = scrape(seat.metrics_url)
        assert idle['octavo_kv_host_blocks{state="free"}'] == idle["octavo_kv_host_blocks_capacity"] == 96
        assert total(idle, "octavo_kv_blocks") == 24


async def test_a30_a_full_host_tier_means_recompute_not_failure(seat: SchedulerSeat) -> None:
    name = 'octavo_preemptions_total{mode="recompute",reason="host_full"}'
    before = scrape(seat.metrics_url)[name]
    async with rig_at(seat, replace(SWAPPING, num_host_blocks=2)) as rig:
        await _whole(await _begun(rig))
        assert scrape(seat.metrics_url)[name] > before


async def test_a01_a_request_aborted_while_it_is_swapped_out_is_told_so(seat: SchedulerSeat) -> None:
    async with rig_at(seat, SWAPPING) as rig:
        crowd = await _begun(rig)
        await until_swapped(rig)
        await rig.abort(*(f"r{i}" for i in range(6)))
        await rig.fake.release()
        replies = await asyncio.gather(*crowd)
        assert {reply.reason for reply in replies} <= {"ABORTED", "LENGTH"}
        assert "ABORTED" in {reply.reason for reply in replies}
        await until(lambda: scrape(seat.metrics_url)['octavo_kv_host_blocks{state="used"}'] == 0)


async def test_a_worker_that_leaves_a_transfer_unacknowledged_loses_its_session(seat: SchedulerSeat) -> None:
    async with rig_at(seat, SWAPPING) as rig:
        before = scrape(seat.metrics_url)
        rig.fake.keeps_transfers = True
        crowd = await _begun(rig)
        await until(lambda: len(rig.fake.sessions) > 1)
        rig.fake.keeps_transfers = False
        await _whole(crowd)
        after = scrape(seat.metrics_url)
        name = 'octavo_step_failures_total{reason="UNSPECIFIED"}'
        assert after[name] > before[name]


async def test_swap_against_a_worker_without_host_blocks_is_refused_in_the_log(seat: SchedulerSeat) -> None:

    fake = FakeWorker(replace(SWAPPING, num_host_blocks=0))
    await fake.start(seat.worker_address)
    try:
        text = "num_host_blocks: 0, but --preemption swap needs at least 1"
        await until(lambda: text in seat.process.log_end())
        assert not fake.sessions
    finally:
        await fake.die()


async def test_a_worker_that_is_lost_while_requests_are_swapped_out_costs_only_time(
    seat: SchedulerSeat,
) -> None:
    async with rig_at(seat, SWAPPING) as rig:
        crowd = await _begun(rig)
        await until_swapped(rig)
        await rig.fake.restart()
        await rig.fake.release()
        await _whole(crowd)
        assert scrape(seat.metrics_url)['octavo_preempted_tokens_total{mode="swap"}'] > 0


# A real model


@pytest.fixture(scope="module")
def swap_bench(tiny_llama: Path, shared_processes: Processes) -> Bench:
    flags = ["--dtype", "float64", "--block-size", str(BLOCK), "--num-blocks", "60", "--max-model-len", "200"]
    worker = shared_processes.worker(tiny_llama, "127.0.0.1:0", *flags, "--swap-space", "0.05")
    return Bench(shared_processes, tiny_llama, worker)


@pytest.mark.timeout(300)
def test_a30_a_real_models_tokens_are_those_of_a_calm_run_under_swap_and_auto(swap_bench: Bench) -> None:
    """Greedy, seeded, penalised, constrained and with log-probabilities, in a pool that is too small."""
    with swap_bench.scheduler("--preemption", "recompute", "--depth", "1") as address:
        calm = asyncio.run(run(address, cases(), together=False))
    assert not any(reply.preemptions for reply in calm)
    moved_in = 'octavo_kv_block_moves_total{direction="in"}'
    for flags, counted in (
        (("--preemption", "swap"), 'octavo_kv_block_moves_total{direction="out"}'),
        (("--preemption", "auto"), "octavo_preempted_seconds_count"),
        (("--preemption", "swap", "--no-prefix-cache"), moved_in),  # else the device may still have it all
    ):
        # answers of 14 tokens: what an admission leaves for growth would cover them at depth 3
        with swap_bench.scheduler(*flags, "--depth", "2") as address:
            replies = asyncio.run(crowd(swap_bench, address, cases()))
            samples = asyncio.run(_samples(address, swap_bench))
        assert [reply.tokens for reply in replies] == [reply.tokens for reply in calm], flags
        assert samples[counted] > 0, flags
        for reply, first in zip(replies, calm, strict=True):
            assert reply.logprobs == pytest.approx(first.logprobs, abs=1e-5)


async def _samples(address: str, bench: Bench) -> dict[str, float]:
    process = next(one for one in reversed(bench.processes.started) if one.serving.get("listen") == address)
    async with Service(address) as service:
        await service.wait_idle()
    return await asyncio.to_thread(scrape, f"http://127.0.0.1:{process.serving['metrics_port']}/metrics")

"""A27: what /metrics says, before, in and after the work."""

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.metrics import exposition, scrape, total
from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, until
from tests.e2e.service import request

SALT = "tenant-7f3a"


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama)


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat) as made:
        yield made


def blocks(samples: dict[str, float]) -> float:
    return total(samples, "octavo_kv_blocks")


async def test_a27_gauges_are_exact_in_a_burst_and_zero_after_it(rig: Rig) -> None:
    rig.fake.step_delay = 0.005
    started = [await rig.begin(request(prompt_of(9, seed), 200, request_id=f"g{seed}")) for seed in range(6)]
    for _ in range(10):
        samples = scrape(rig.seat.metrics_url)
        assert blocks(samples) == samples['octavo_kv_blocks_capacity{device="0"}'] == SMALL.num_blocks
        assert samples["octavo_kv_slots_filled"] <= samples["octavo_kv_slots_allocated"]
    assert samples["octavo_requests_running"] + total(samples, "octavo_requests_waiting") == 6
    aborted = 'octavo_requests_total{outcome="aborted"}'
    rig.fake.hold()
    await rig.abort(*(f"g{seed}" for seed in range(6)))
    after = scrape(rig.seat.metrics_url)  # no step has come back since
    assert after["octavo_requests_running"] == total(after, "octavo_requests_waiting") == 0
    assert after['octavo_kv_blocks{device="0",state="active"}'] == 0
    assert blocks(after) == SMALL.num_blocks
    assert after[aborted] - samples[aborted] == 6
    await rig.fake.release()
    for _, task in started:
        assert (await task).reason == "ABORTED"


async def test_a27_gauges_follow_a_lost_worker_and_are_zero_after_its_restart(rig: Rig) -> None:
    rig.fake.step_delay = 0.005
    started = [await rig.begin(request(prompt_of(9, seed), 200, request_id=f"w{seed}")) for seed in range(6)]
    await rig.fake.die()
    await until(lambda: scrape(rig.seat.metrics_url)["octavo_worker_session_up"] == 0)
    lost = scrape(rig.seat.metrics_url)
    assert blocks(lost) == lost['octavo_kv_blocks_capacity{device="0"}'] == lost["octavo_kv_usage_ratio"] == 0
    for name in ("requests_running", "kv_slots_allocated", "kv_slots_filled", "kv_block_refs"):
        assert lost[f"octavo_{name}"] == 0, name
    assert total(lost, "octavo_requests_waiting") == 6
    await rig.abort(*(f"w{seed}" for seed in range(6)))
    assert total(scrape(rig.seat.metrics_url), "octavo_requests_waiting") == 0
    for _, task in started:
        assert (await task).reason == "ABORTED"
    await rig.fake.restart()
    await rig.service.wait_ready()
    after = scrape(rig.seat.metrics_url)
    assert blocks(after) == after['octavo_kv_blocks{device="0",state="free"}'] == SMALL.num_blocks
    assert after["octavo_requests_running"] == total(after, "octavo_requests_waiting") == 0
    assert after["octavo_prefix_index_entries"] == 0


@pytest.mark.parametrize("requests", [300, pytest.param(10_000, marks=pytest.mark.long)])
async def test_a27_the_number_of_series_never_grows(rig: Rig, seat: SchedulerSeat, requests: int) -> None:
    before = set(scrape(rig.seat.metrics_url))
    for start in range(0, requests, 50):
        await rig.service.run_all(
            [
                request(prompt_of(3, seed), 1, request_id=f"req-{seed}", cache_salt=f"{SALT}-{seed}")
                for seed in range(start, start + 50)
            ]
        )
    for _ in range(5):
        await rig.fake.restart(SMALL)
        await rig.service.wait_ready()
        await rig.service.generate(prompt_of(3), 1)
    samples = scrape(rig.seat.metrics_url)
    assert set(samples) == before
    assert samples["octavo_worker_epoch_changes_total"] >= 5


async def test_a08_a_salt_shows_neither_in_metrics_nor_in_logs(rig: Rig) -> None:
    await rig.service.generate("a prompt to be kept quiet", 3, cache_salt=SALT)
    exposed = exposition(rig.seat.metrics_url)
    logged = rig.seat.process.err.read_text()
    for secret in (SALT, "kept quiet"):
        assert secret not in exposed
        assert secret not in logged


async def test_counters_tell_what_was_done(rig: Rig) -> None:
    before = scrape(rig.seat.metrics_url)
    prompt = prompt_of(40, seed=77)
    for _ in range(2):
        await rig.service.generate(prompt, 6)
    after = scrape(rig.seat.metrics_url)

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("octavo_generated_tokens_total") == grown("octavo_delivered_tokens_total") == 12
    assert grown('octavo_prompt_tokens_total{source="cached"}') == 39
    assert grown('octavo_prompt_tokens_total{source="computed"}') == 41
    assert grown("octavo_prefix_lookup_tokens_total") >= 78
    assert grown('octavo_prefix_hit_tokens_total{tier="device"}') == 39
    assert grown('octavo_requests_total{outcome="length"}') == 2
    assert grown("octavo_time_to_first_token_seconds_count") == 2
    assert grown("octavo_inter_token_latency_seconds_count") == 10
    assert grown("octavo_queue_wait_seconds_count") == grown("octavo_request_seconds_count") == 2
    assert grown("octavo_worker_rpc_seconds_count") == grown("octavo_batch_tokens_count")


def test_the_exposition_passes_promtool_where_there_is_one(seat: SchedulerSeat) -> None:
    """`promtool check metrics` is in Debian's prometheus; unit tests check the same name rules."""
    exposed = exposition(seat.metrics_url)
    assert exposed.endswith("\n")
    promtool = shutil.which("promtool")
    if promtool is not None:
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=exposed.encode(), capture_output=True, check=False
        )
        assert checked.returncode == 0, checked.stderr.decode()

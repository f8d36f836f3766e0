"""The virtual clock: when things happen, that everything ends, and that nothing depends on the real one."""

import json
from dataclasses import replace

import numpy as np
import pytest

from scheduler_svc.core.plan import PreemptionMode
from scheduler_svc.simulate.collector import MAX_SAMPLES
from scheduler_svc.simulate.readers import ReadOptions, read_trace
from scheduler_svc.simulate.simulator import Setup
from scheduler_svc.simulate.trace import Trace
from scheduler_svc.simulate.worker_model import H200_QWEN3_06B, StepTimes
from tests.unit.simulate.traces import (
    AZURE,
    MOONCAKE,
    TEN_MS,
    figures,
    made_trace,
    session_trace,
    setup,
    simulate,
)

SLOW_PREFILL = StepTimes("slow prefill", ((1.0, 0.01), (2.0, 0.02)), 0.0, 0.0, 1000, 1e9)
"""10 ms a new token, a megabyte a millisecond to and from the host."""


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_one_request_takes_one_step_a_token(depth: int) -> None:
    kept = simulate(made_trace((0.0, 100, 3)), setup(depth=depth))
    assert kept.first_token_at.tolist() == pytest.approx([0.010])
    assert np.concatenate(kept.gaps).tolist() == pytest.approx([0.010, 0.010])
    assert kept.ended_at.tolist() == pytest.approx([0.030])
    assert (kept.steps, kept.seconds) == (3, pytest.approx(0.030))


def test_a_prompt_longer_than_a_step_takes_several() -> None:
    kept = simulate(made_trace((0.0, 100, 1)), setup(max_num_batched_tokens=40, max_num_seqs=4))
    assert kept.steps == 3
    assert kept.first_token_at[0] == pytest.approx(0.030)


def test_a_request_that_comes_during_a_step_joins_the_next() -> None:
    """At depth 1 its plan is made when the step ends, at depth 2 when it arrives; it runs then either way."""
    for depth in (1, 2):
        kept = simulate(made_trace((0.0, 100, 1), (0.005, 100, 1)), setup(depth=depth))
        assert kept.first_token_at.tolist() == pytest.approx([0.010, 0.020])
        assert kept.arrived_at.tolist() == [0.0, 0.005]


def test_arrivals_are_scaled_and_idle_time_passes() -> None:
    trace = made_trace((0.0, 10, 1), (8.0, 10, 1))
    assert simulate(trace, setup()).ended_at.tolist() == pytest.approx([0.010, 8.010])
    assert simulate(trace, setup(arrival_scale=4.0)).ended_at.tolist() == pytest.approx([0.010, 2.010])


def test_one_at_a_time_follows_the_end_of_the_one_before() -> None:
    trace = made_trace((0.0, 10, 2), (0.0, 10, 2), (900.0, 10, 1))
    kept = simulate(trace, setup(one_at_a_time=True))
    assert kept.arrived_at.tolist() == pytest.approx([0.0, 0.020, 0.040])
    assert kept.most_rows == 1


def test_shortest_first_puts_half_the_length_ahead() -> None:
    trace = made_trace((0.0, 40, 1), (0.001, 40, 1), (0.002, 10, 1))
    given = {"max_num_seqs": 1, "depth": 1}
    by_arrival, by_length = (
        simulate(trace, setup(**given)),
        simulate(trace, setup(shortest_first=True, **given)),
    )
    assert by_arrival.ended_at.argsort().tolist() == [0, 1, 2]
    assert by_length.ended_at.argsort().tolist() == [0, 2, 1]


def test_who_waits_too_long_goes_away_and_the_rest_are_served() -> None:
    trace = made_trace((0.0, 40, 10), (0.001, 40, 1), (0.09, 40, 1))
    given = setup(max_num_seqs=1, queue_timeout=0.05)
    run = figures(trace, given)
    assert run["requests"]["gave_up_waiting"] == 1
    assert run["requests"]["ended"] == {"length": 2}
    kept = simulate(trace, given)
    assert kept.ended_at[1] == pytest.approx(0.051)
    assert kept.first_token_at[1] < 0, "it got no token"


def test_what_can_never_run_is_refused_and_counted() -> None:
    run = figures(made_trace((0.0, 50, 1), (0.0, 5, 1), (0.0, 0, 1)), setup(num_blocks=10))
    assert run["requests"]["refused"] == {"EMPTY_PROMPT": 1, "EXCEEDS_KV_POOL": 1}
    assert run["requests"]["ended"] == {"length": 1}


def test_a_small_pool_preempts_and_everybody_ends() -> None:
    trace = made_trace(*((0.0, 20, 30) for _ in range(6)))
    run = figures(trace, setup(num_blocks=40, watermark_blocks=0))
    preemption = run["preemption"]
    assert preemption["count"]["recompute"] > 0
    assert preemption["thrown_away_tokens"] > 0
    assert preemption["recomputed_tokens"] > 0
    assert run["requests"]["ended"] == {"length": 6}
    assert run["throughput"]["generated_tokens"] == 180


def test_shared_prefixes_save_blocks_while_they_are_held() -> None:
    head = list(range(100, 140))
    trace = session_trace([head + [i] * 9 for i in range(4)], output_len=50)
    run = figures(Trace("made", "made", trace.requests), setup(arrival_scale=100.0))
    assert run["memory"]["blocks_saved_by_sharing_most"] == 3 * 10
    assert run["prefix"]["hit_tokens"] == 3 * 40


def test_the_figures_of_waste_are_those_of_the_slots() -> None:
    """One request of 9 tokens and 16 of output in blocks of 32: it holds one block throughout."""
    run = figures(made_trace((0.0, 9, 16)), setup(block_size=32))
    assert run["memory"]["blocks_active_most"] == 1
    assert run["memory"]["slots_allocated_mean"] <= 32
    assert 0.2 < run["memory"]["waste"] < 0.7


@pytest.mark.parametrize(
    "given",
    [setup(16, 4000), setup(16, 1200, watermark_blocks=0, arrival_scale=20.0, shortest_first=True)],
    ids=["roomy", "tight"],
)
def test_the_same_input_gives_the_same_json(given: Setup) -> None:
    trace = read_trace(AZURE, options=ReadOptions(limit=60))
    first, second = (json.dumps(figures(trace, given, H200_QWEN3_06B)) for _ in range(2))
    assert first == second
    assert json.loads(first)["requests"]["ended"] == {"length": 60}


def test_a_real_trace_runs_to_its_end_with_bounded_samples() -> None:
    trace = read_trace(MOONCAKE, options=ReadOptions(limit=60))
    run = figures(trace, setup(256, 20_000), H200_QWEN3_06B)
    moments = [sample["seconds"] for sample in run["timeline"]]
    assert run["requests"]["ended"] == {"length": 60}
    assert run["throughput"]["generated_tokens"] == sum(request.output_len for request in trace.requests)
    assert 10 < len(moments) <= MAX_SAMPLES
    assert moments == sorted(moments)
    assert np.allclose(np.diff(moments), moments[1])


def test_time_never_goes_back_and_the_worker_is_never_two_places_at_once() -> None:
    trace = read_trace(AZURE, options=ReadOptions(limit=40))
    kept = simulate(trace, setup(16, 2000, arrival_scale=50.0), TEN_MS)
    ends = np.sort(kept.last_token_at)
    assert kept.step_seconds == pytest.approx(kept.steps * 0.010)
    assert kept.step_seconds <= kept.seconds + 1e-9
    assert (kept.first_token_at >= kept.arrived_at).all()
    assert (np.concatenate(kept.gaps) >= 0.010 - 1e-9).all()
    assert ends[-1] == pytest.approx(kept.seconds)


def test_several_answers_share_their_prompt_and_end_apart() -> None:
    trace = made_trace((0.0, 20, 6), (0.001, 20, 6))
    run = figures(trace, setup(n=3))
    kept = simulate(trace, setup(n=3))
    assert run["requests"] == {
        "offered": 2, "refused": {}, "gave_up_waiting": 0, "ended": {"length": 6}
    }  # fmt: skip
    assert run["throughput"]["generated_tokens"] == 2 * 3 * 6
    assert run["throughput"]["computed_prompt_tokens"] == 2 * 20
    assert run["memory"]["blocks_saved_by_sharing_most"] >= 2 * 2 * 5
    assert (kept.first_token_at >= 0).all()
    assert len(kept.first_token_at) == 6


def test_a_group_that_waits_too_long_goes_away_whole() -> None:
    trace = made_trace((0.0, 40, 10), (0.001, 40, 5))
    run = figures(trace, setup(max_num_seqs=2, n=2, queue_timeout=0.05))
    assert run["requests"]["gave_up_waiting"] == 1
    assert run["requests"]["ended"] == {"length": 2}


def test_more_answers_than_rows_are_refused() -> None:
    run = figures(made_trace((0.0, 5, 1)), setup(max_num_seqs=2, n=3))
    assert run["requests"]["refused"] == {"EXCEEDS_ROWS": 1}


def test_a_swap_moves_blocks_out_and_back_and_throws_nothing_away() -> None:
    trace = made_trace(*((0.0, 40, 60) for _ in range(8)))
    mode = {"preemption": PreemptionMode.SWAP}
    run = figures(trace, setup(num_blocks=150, host_blocks=1000, **mode), SLOW_PREFILL)
    preemption = run["preemption"]
    assert preemption["count"]["swap"] > 0
    assert preemption["blocks_swapped_out"] == preemption["blocks_swapped_in"] > 0
    assert preemption["cost_s"]["swap"] > 0
    assert run["requests"]["ended"] == {"length": 8}
    if not preemption["count"]["recompute"]:
        assert preemption["thrown_away_tokens"] == 0


def test_auto_takes_what_the_worker_does_faster() -> None:
    trace = made_trace(*((0.0, 40, 60) for _ in range(8)))
    given = setup(num_blocks=150, host_blocks=1000)
    slow_host = replace(SLOW_PREFILL, host_bytes_per_second=1.0)
    by_swap = figures(trace, given, SLOW_PREFILL)["preemption"]["by_reason"]
    by_recompute = figures(trace, given, slow_host)["preemption"]["by_reason"]
    assert by_swap.get("swap, cost", 0) > 0
    assert by_recompute.get("recompute, cost", 0) + by_recompute.get("recompute, need", 0) > 0

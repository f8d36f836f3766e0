"""The worker's metrics: names, every series from the start, what a step adds."""

import urllib.request

from gpu_worker.kv_pool import PoolSize
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.model_runner import StepOutcome
from tests.fixtures.hand_plans import NO_IDS


def scrape(metrics: WorkerMetrics) -> dict[str, float]:
    server = metrics.serve("127.0.0.1", 0)
    text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
    server.close()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_every_series_exists_before_the_first_step() -> None:
    metrics = WorkerMetrics()
    before = scrape(metrics)
    metrics.loaded(PoolSize(10, 1000, 900, 300, 100, 400, 100))
    metrics.session_accepted()
    metrics.step_done(
        StepOutcome(
            NO_IDS, (3, 4, 5), 0.02, 0.005, 0.001, 0.0004, barred_rows=frozenset((4, 5)), replayed=True
        )
    )
    metrics.step_failed("invalid_plan")
    after = scrape(metrics)
    assert before.keys() == after.keys()
    assert not any(name.endswith("_created") for name in after)
    changed = {name: after[name] - before[name] for name in after if "_bucket" not in name}
    assert {name: value for name, value in changed.items() if value} == {
        'octavo_worker_memory_bytes{use="weights"}': 300,
        'octavo_worker_memory_bytes{use="activations"}': 100,
        'octavo_worker_memory_bytes{use="pool"}': 400,
        'octavo_worker_memory_bytes{use="slack"}': 100,
        "octavo_worker_sessions_accepted_total": 1,
        "octavo_worker_graph_replays_total": 1,
        'octavo_worker_steps_total{outcome="ok"}': 1,
        'octavo_worker_steps_total{outcome="invalid_plan"}': 1,
        'octavo_worker_failed_rows_total{reason="non_finite_logits"}': 1,
        'octavo_worker_failed_rows_total{reason="grammar_failed"}': 2,
        "octavo_step_forward_seconds_count": 1,
        "octavo_step_forward_seconds_sum": 0.02,
        "octavo_step_gap_seconds_count": 1,
        "octavo_step_gap_seconds_sum": 0.0004,
        'octavo_worker_kernel_seconds_count{op="model"}': 1,
        'octavo_worker_kernel_seconds_sum{op="model"}': 0.015,
        'octavo_worker_kernel_seconds_count{op="sample"}': 1,
        'octavo_worker_kernel_seconds_sum{op="sample"}': 0.005,
        'octavo_worker_kernel_seconds_count{op="block_moves"}': 1,
        'octavo_worker_kernel_seconds_sum{op="block_moves"}': 0.001,
    }

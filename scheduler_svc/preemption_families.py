"""The metrics of preemption and of the host tier as Prometheus families.

Owns their names, help texts and labels; knows neither the endpoint nor the core's decisions. Invariant: every
label set exists from the start.
"""

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from scheduler_svc.core.decisions import ERROR_BOUNDS, ErrorHistogram, Mode
from scheduler_svc.core.stats import PoolStats
from scheduler_svc.metrics import Histogram

Totals = Mapping[tuple[str, ...], float]


def preemption_families(stats: PoolStats, bytes_per_block: int) -> Iterator[Metric]:
    """bytes_per_block: 0 before the first worker."""
    record, counters = stats.preemption, stats.counters
    yield _counters(
        "preemptions",
        "Sequences put back to make room, and why in this way.",
        ["mode", "reason"],
        {(mode.value, reason.value): n for (mode, reason), n in record.counts.items()},
    )
    yield _counters(
        "preempted_tokens",
        "Computed tokens thrown away by preemption; of swap: with a copy that was lost.",
        ["mode"],
        {(mode.value,): n for mode, n in record.lost_tokens.items()},
    )
    yield _counters(
        "preemption_estimated_seconds",
        "What preemptions were estimated to cost, of those whose cost was measured.",
        ["mode"],
        {(mode.value,): seconds for mode, seconds in record.estimated.items()},
    )
    yield _counters(
        "preemption_cost_seconds",
        "What preemptions did cost: tokens computed again, or blocks moved out and in.",
        ["mode"],
        {(mode.value,): seconds for mode, seconds in record.cost.items()},
    )
    yield _errors(record.errors)
    moved = {("out",): counters.blocks_swapped_out, ("in",): counters.blocks_swapped_in}
    yield _counters(
        "kv_block_moves", "KV blocks moved to the host and back.", ["direction"], dict(moved.items())
    )
    yield _counters(
        "kv_swap_bytes",
        "Bytes moved to the host and back.",
        ["direction"],
        {direction: blocks * bytes_per_block for direction, blocks in moved.items()},
    )
    yield GaugeMetricFamily(
        "octavo_kv_host_blocks_capacity", "Blocks of the host tier.", value=stats.host_blocks
    )
    free = stats.host_blocks_free
    states = GaugeMetricFamily("octavo_kv_host_blocks", "Blocks of the host tier by state.", labels=["state"])
    states.add_metric(["free"], free)
    states.add_metric(["used"], stats.host_blocks - free)
    yield states


def _counters(name: str, text: str, labels: list[str], values: Totals) -> Metric:
    family = CounterMetricFamily(f"octavo_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family


def _errors(errors: Mapping[Mode, ErrorHistogram]) -> Metric:
    family = HistogramMetricFamily(
        "octavo_preemption_estimate_error_ratio",
        "How far the estimate was from the cost, as a part of the cost.",
        labels=["mode"],
    )
    for mode, error in errors.items():
        values = Histogram(ERROR_BOUNDS)
        values.counts, values.total = error.counts, error.total
        family.add_metric([mode.value], values.cumulative(), values.total)
    return family

"""Counters, histograms and the families that Prometheus sees (A27)."""

import re

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.stats import Counters, PoolStats
from scheduler_svc.exposition import EngineCollector
from scheduler_svc.families import families
from scheduler_svc.metrics import Histogram, ShellMetrics
from tests.unit.scheduler_svc.engine_rig import engine_rig
from tests.unit.scheduler_svc.plans import plan

EMPTY = PoolStats(counters=Counters())


def samples(metrics: list[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))) for metric in metrics for sample in metric.samples
    }


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    histogram = Histogram([1.0, 2.0, 4.0])
    for value in (0.5, 1.0, 1.5, 4.0, 5.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 3), ("4.0", 4), ("+Inf", 5)]
    assert histogram.total == 12.0


@pytest.mark.parametrize("count", [0, 3, 50])
def test_many_values_at_once_are_the_same_as_one_by_one(count: int) -> None:
    together, alone = Histogram([0.1, 0.2, 0.5]), Histogram([0.1, 0.2, 0.5])
    values = [0.1 * (i % 8) for i in range(count)]
    together.observe_many(values)
    for value in values:
        alone.observe(value)
    assert together.counts == alone.counts
    assert together.total == pytest.approx(alone.total)


@pytest.mark.parametrize(
    ("queries", "kind"), [([1, 1], "decode"), ([5], "prefill"), ([5, 3], "prefill"), ([1, 4], "mixed")]
)
def test_steps_are_counted_by_kind(queries: list[int], kind: str) -> None:
    shell = ShellMetrics()
    shell.step_sent(plan(1, rows=range(len(queries)), query_lens=queries), 0.001, 100)
    assert {name for name, count in shell.steps.items() if count} == {kind}


def test_reasons_without_a_label_of_their_own_are_other() -> None:
    shell = ShellMetrics()
    shell.rejected("SOMETHING_NEW")
    shell.step_failed("SOMETHING_NEW")
    assert (shell.rejections["OTHER"], shell.step_failures["UNSPECIFIED"]) == (1, 1)
    assert "SOMETHING_NEW" not in shell.rejections


def test_a27_every_label_set_exists_from_the_start() -> None:
    """No worker yet, nothing counted: the same series as in full swing."""
    at_start = samples(list(families(EMPTY, None, False, ShellMetrics())))
    busy = ShellMetrics()
    busy.outcomes["stop"] += 5
    busy.rejected("QUEUE_FULL")
    busy.step_sent(plan(1), 0.1, 10)
    worker = worker_pb2.GetCapacityResponse(bytes_per_block=10)
    stats = PoolStats(counters=Counters(preemptions=3), num_blocks=10, blocks_free=4, blocks_active=6)
    assert samples(list(families(stats, worker, True, busy))) == at_start


def test_no_label_names_a_request_a_tenant_or_a_salt() -> None:
    labels = {
        name for _, pairs in samples(list(families(EMPTY, None, False, ShellMetrics()))) for name, _ in pairs
    }
    assert labels <= {
        "device", "state", "kind", "reason", "outcome", "mode", "tier", "source", "invariant", "le",
        "direction",
        "kv_dtype", "layout", "model", "fingerprint",
    }  # fmt: skip


def test_names_and_help_texts_pass_prometheus_own_lint() -> None:
    """The rules of `promtool check metrics` that a name can break; the tool itself runs in the e2e tests."""
    for metric in families(EMPTY, None, False, ShellMetrics()):
        assert re.fullmatch(r"octavo_[a-z][a-z0-9_]*", metric.name), metric.name
        assert metric.documentation
        for sample in metric.samples:
            if metric.type == "counter":
                assert sample.name.endswith("_total")
            if metric.type == "gauge":
                assert not sample.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert not re.search(r"_(ms|milliseconds|kb|mb|kilobytes|percent|minutes)(_|$)", metric.name)


class _Fixed(Collector):
    def collect(self) -> list[Metric]:
        return list(families(EMPTY, None, False, ShellMetrics()))


def test_the_families_make_one_valid_exposition() -> None:
    registry = CollectorRegistry()
    registry.register(_Fixed())
    text = generate_latest(registry).decode()
    assert text.count("# TYPE octavo_kv_blocks gauge") == 1
    assert 'octavo_kv_blocks{device="0",state="free"} 0.0' in text


async def test_a27_pool_gauges_are_exact_at_every_moment_and_zero_after_aborts() -> None:
    async with engine_rig() as rig:
        records = await rig.fill(tokens=20)
        for steps in (0, 3, 5):
            await rig.answer(steps)
            stats = await rig.engine.ask(lambda core: core.stats())
            states = stats.blocks_free + stats.blocks_evictable + stats.blocks_active + stats.blocks_fenced
            assert states == stats.num_blocks == 64
            assert stats.running == 8
            assert stats.slots_filled <= stats.slots_allocated
        await rig.engine.abort([record.request_id for record in records])
        stats = await rig.engine.ask(lambda core: core.stats())
        assert (stats.running, stats.waiting, stats.blocks_active, stats.block_refs) == (0, 0, 0, 0)
        assert rig.outcome() == {"aborted": 8}


async def test_a_scrape_takes_its_numbers_from_the_engine() -> None:
    import asyncio

    async with engine_rig() as rig:
        await rig.submit(tokens=20)
        collector = EngineCollector(rig.engine, rig.metrics, asyncio.get_running_loop())
        found = await asyncio.to_thread(lambda: list(collector.collect()))
        values = {s.name: s.value for metric in found for s in metric.samples}
        assert values["octavo_requests_running"] == 1
        assert values["octavo_worker_session_up"] == 1

"""The scheduler's metrics as Prometheus families.

Owns names, help texts and labels of everything exported; knows neither the endpoint nor when it is scraped.
Invariant: the same families with the same label sets come out at every scrape, whatever has happened before.
"""

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.ages import AGE_BOUNDS, AgeHistogram
from scheduler_svc.core.stats import PoolStats
from scheduler_svc.metrics import Histogram, ShellMetrics
from scheduler_svc.preemption_families import preemption_families

DEVICE = "0"
"""Label of the one KV pool that there is."""


def families(
    stats: PoolStats, worker: worker_pb2.GetCapacityResponse | None, ready: bool, shell: ShellMetrics
) -> Iterator[Metric]:
    """All families. worker: what the latest one said of itself. ready: whether a session is up."""
    yield from _blocks(stats, worker)
    yield _gauge(
        "kv_blocks_leaked", "Blocks in no state at the last audit of an idle pool.", shell.leaked_blocks
    )
    yield _counters(
        "invariant_violations",
        "What checks of the KV cache's invariants found broken.",
        ["invariant"],
        {(key,): n for key, n in shell.invariant_violations.items()},
    )
    yield from _flow(stats)
    yield from _prefix_cache(stats)
    yield from preemption_families(stats, worker.bytes_per_block if worker is not None else 0)
    yield from _ages(stats)
    yield from _queue(stats, shell)
    yield from _steps(stats, ready, shell)
    yield from _latency(stats, shell)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"octavo_{name}", text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"octavo_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"octavo_{name}", text, value=value)


def _counters(name: str, text: str, labels: list[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = CounterMetricFamily(f"octavo_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family


def _histogram(name: str, text: str, values: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"octavo_{name}", text, buckets=values.cumulative(), sum_value=values.total)


def _blocks(stats: PoolStats, worker: worker_pb2.GetCapacityResponse | None) -> Iterator[Metric]:
    capacity = GaugeMetricFamily("octavo_kv_blocks_capacity", "KV blocks of the pool.", labels=["device"])
    capacity.add_metric([DEVICE], stats.num_blocks)
    yield capacity
    states = GaugeMetricFamily(
        "octavo_kv_blocks", "KV blocks by state; the states sum to the capacity.", labels=["device", "state"]
    )
    states.add_metric([DEVICE, "free"], stats.blocks_free)
    states.add_metric([DEVICE, "evictable"], stats.blocks_evictable)
    states.add_metric([DEVICE, "active"], stats.blocks_active)
    states.add_metric([DEVICE, "fenced"], stats.blocks_fenced)
    yield states
    yield _gauge("kv_blocks_shared", "KV blocks held by two block tables or more.", stats.blocks_shared)
    yield _gauge("kv_block_refs", "Block table entries over all sequences.", stats.block_refs)
    used = stats.blocks_active / stats.num_blocks if stats.num_blocks else 0.0
    yield _gauge("kv_usage_ratio", "Active blocks as a part of the capacity.", used)
    yield _gauge("kv_block_size_tokens", "Tokens of a KV block.", stats.block_size)
    per_block = worker.bytes_per_block if worker is not None else 0
    yield _gauge("kv_bytes_per_block", "Bytes of a KV block over all layers.", per_block)
    yield InfoMetricFamily(
        "octavo_kv_config",
        "How the KV pool is built.",
        value={
            "kv_dtype": worker.kv_dtype if worker is not None else "",
            "layout": worker.kv_layout if worker is not None else "",
            "model": worker.model_id if worker is not None else "",
            "fingerprint": worker.model_fingerprint if worker is not None else "",
        },
    )
    yield _gauge("kv_slots_allocated", "Slots of the blocks that sequences hold.", stats.slots_allocated)
    yield _gauge("kv_slots_filled", "Slots that hold a token, of the allocated ones.", stats.slots_filled)


def _flow(stats: PoolStats) -> Iterator[Metric]:
    counters = stats.counters
    yield _counter("kv_blocks_allocated", "KV blocks handed out.", counters.blocks_allocated)
    yield _counter("kv_blocks_freed", "KV blocks given back.", counters.blocks_freed)
    yield _counter("kv_blocks_evicted", "Findable KV blocks taken for new content.", counters.blocks_evicted)


def _prefix_cache(stats: PoolStats) -> Iterator[Metric]:
    counters = stats.counters
    yield _counter(
        "prefix_lookup_tokens", "Prompt tokens looked up in the prefix index.", counters.prefix_lookup_tokens
    )
    yield _counters(
        "prefix_hit_tokens",
        "Prompt tokens served from the prefix index.",
        ["tier"],
        {("device",): counters.prefix_hit_tokens},
    )
    yield _counter(
        "prefix_alignment_lost_tokens",
        "Tokens that a cached block holds too but a whole block could not give.",
        counters.prefix_alignment_lost_tokens,
    )
    yield _counters(
        "kv_cow_copies",
        "KV blocks copied: before a branch wrote to a shared one, or to go on inside a cached one.",
        ["reason"],
        {("fork",): counters.copies_on_write, ("prefix",): counters.prefix_copies},
    )
    yield _counter(
        "prefix_copied_tokens", "Prompt tokens served by copying a block.", counters.prefix_copied_tokens
    )
    yield _counter("kv_forks", "Branches that began on the blocks of another.", counters.forks)
    yield _counter(
        "kv_blocks_saved_by_forks",
        "Blocks that branches shared at their fork.",
        counters.blocks_saved_by_forks,
    )
    yield _gauge("prefix_index_entries", "Blocks that the prefix index finds.", stats.prefix_entries)
    yield _counter(
        "prefix_collisions", "Equal hashes of different blocks, taken as misses.", counters.prefix_collisions
    )
    yield _counter(
        "prefix_flushed_blocks",
        "Blocks forgotten by FlushPrefixCache.",
        counters.prefix_flushed_blocks,
    )
    yield _counter(
        "prefix_recompute_lookup_tokens",
        "Tokens looked up when a sequence came back.",
        counters.recompute_lookup_tokens,
    )
    yield _counter(
        "prefix_recompute_hit_tokens",
        "Tokens found again when a sequence came back.",
        counters.recompute_hit_tokens,
    )


def _ages(stats: PoolStats) -> Iterator[Metric]:
    ages = stats.ages
    yield _age(
        "kv_block_lifetime_seconds", "From handing a KV block out to giving up its content.", ages.lifetime
    )
    yield _age("kv_block_idle_seconds", "How long nobody held a KV block that was evicted.", ages.idle)
    yield _age("kv_block_reuse_gap_seconds", "How long nobody held a KV block that was hit.", ages.reuse_gap)
    yield _age("preempted_seconds", "How long a preempted sequence waited to come back.", ages.preempted)


def _age(name: str, text: str, ages: AgeHistogram) -> Metric:
    values = Histogram(AGE_BOUNDS)
    values.counts, values.total = ages.counts, ages.total
    return _histogram(name, text, values)


def _queue(stats: PoolStats, shell: ShellMetrics) -> Iterator[Metric]:
    yield _gauge("requests_running", "Requests that hold a row.", stats.running)
    waiting = {
        "new": float(stats.waiting - stats.preempted),
        "preempted": float(stats.preempted - stats.swapped),
        "swapped": float(stats.swapped),
    }
    yield _gauges("requests_waiting", "Requests that wait for a row.", "reason", waiting)
    yield _counters(
        "requests", "Requests that ended.", ["outcome"], {(key,): n for key, n in shell.outcomes.items()}
    )
    yield _counters(
        "admission_rejections",
        "Requests that were not taken.",
        ["reason"],
        {(key,): n for key, n in shell.rejections.items()},
    )
    yield _histogram(
        "queue_wait_seconds", "Time from arrival to the first admission.", shell.queue_wait_seconds
    )


def _steps(stats: PoolStats, ready: bool, shell: ShellMetrics) -> Iterator[Metric]:
    yield _counters(
        "steps", "Steps sent, by content.", ["kind"], {(key,): n for key, n in shell.steps.items()}
    )
    yield _counters(
        "step_failures",
        "Steps that failed as a whole.",
        ["reason"],
        {(key,): n for key, n in shell.step_failures.items()},
    )
    yield _counter("rows_failed", "Rows that failed alone in their step.", stats.counters.rows_failed)
    yield _counters(
        "worker_oddities",
        "Answers that did not fit their plan, and were repaired or left out.",
        ["kind"],
        {(key,): n for key, n in shell.oddities.items()},
    )
    yield _histogram("batch_sequences", "Sequences of a step.", shell.batch_sequences)
    yield _histogram("batch_tokens", "New tokens of a step.", shell.batch_tokens)
    yield _histogram("schedule_seconds", "Time to plan a step.", shell.schedule_seconds)
    yield _histogram("plan_bytes", "Bytes of a plan on the wire.", shell.plan_bytes)
    yield _histogram(
        "worker_rpc_seconds", "Time from a plan's departure to its result.", shell.worker_rpc_seconds
    )
    yield _histogram(
        "step_forward_seconds",
        "Time of the forward pass, measured by the worker.",
        shell.step_forward_seconds,
    )
    yield _histogram(
        "step_gap_seconds",
        "Idle time of the device before a step, measured by the worker.",
        shell.step_gap_seconds,
    )
    yield _counter(
        "overshoot_tokens",
        "Tokens sampled for a sequence that had ended, and dropped.",
        stats.counters.overshoot_tokens,
    )
    yield _gauge("worker_session_up", "1 while a session with a worker is up.", float(ready))
    yield _counter("worker_sessions", "Sessions begun with a worker.", shell.sessions)
    yield _counter("worker_epoch_changes", "Sessions with a restarted worker.", shell.epoch_changes)


def _latency(stats: PoolStats, shell: ShellMetrics) -> Iterator[Metric]:
    yield _histogram(
        "time_to_first_token_seconds",
        "Time from arrival to the first token.",
        shell.time_to_first_token_seconds,
    )
    yield _histogram(
        "inter_token_latency_seconds",
        "Time between two tokens of a request.",
        shell.inter_token_latency_seconds,
    )
    yield _histogram("request_seconds", "Time from arrival to the end of a request.", shell.request_seconds)
    yield _counters(
        "prompt_tokens",
        "Prompt tokens of admitted requests, by source.",
        ["source"],
        {("computed",): shell.prompt_tokens["computed"], ("cached",): shell.prompt_tokens["cached"]},
    )
    yield _counter("generated_tokens", "Tokens sampled and kept.", stats.counters.generated_tokens)
    yield _counter("delivered_tokens", "Tokens put into clients' streams.", shell.delivered_tokens)

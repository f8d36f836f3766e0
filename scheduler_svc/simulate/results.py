"""The figures of a run, worked out of what the collector kept and of the core's own counters.

Owns the names and units of the figures; measures nothing. Invariant: every figure is a function of the run
alone (no wall clock), and one that does not exist in a run is null, not zero.

The block hit rate is read from the production index's counters. Units are in the names: _s seconds of virtual
time, _tokens, _blocks, rates and shares between 0 and 1.
"""

from dataclasses import asdict
from typing import Any

import numpy as np

from scheduler_svc.core.decisions import Mode
from scheduler_svc.core.stats import PoolStats
from scheduler_svc.simulate.collector import Collector, FloatArray, Sample
from scheduler_svc.simulate.simulator import Setup

PERCENTILES = (50, 90, 99)

Figures = dict[str, Any]


def figures_of(label: str, setup: Setup, collector: Collector) -> Figures:
    """All figures of one run, ready for JSON."""
    stats = collector.stats
    assert stats is not None, "the run has not ended"
    return {
        "label": label,
        "block_size": setup.block_size,
        "num_blocks": setup.num_blocks,
        "pool_tokens": setup.num_blocks * setup.block_size,
        "requests": _requests(collector),
        "prefix": _prefix(setup, collector, stats),
        "memory": _memory(collector.samples, stats),
        "preemption": _preemption(stats),
        "latency": _latency(collector),
        "throughput": _throughput(collector, stats),
        "timeline": [asdict(sample) for sample in collector.samples],
    }


def _requests(collector: Collector) -> Figures:
    return {
        "offered": collector.count,
        "refused": dict(sorted(collector.refusals.items())),
        "gave_up_waiting": collector.timed_out,
        "ended": dict(sorted(collector.reasons.items())),
    }


def _prefix(setup: Setup, collector: Collector, stats: PoolStats) -> Figures:
    counters = stats.counters
    figures = {
        "lookup_tokens": counters.prefix_lookup_tokens,
        "hit_tokens": counters.prefix_hit_tokens,
        "hit_rate": _share(counters.prefix_hit_tokens, counters.prefix_lookup_tokens),
        "copied_tokens": counters.prefix_copied_tokens,
        "copies": counters.prefix_copies,
        "alignment_lost_tokens": counters.prefix_alignment_lost_tokens,
        "collisions": counters.prefix_collisions,
        "evicted_blocks": counters.blocks_evicted,
    }
    if setup.block_ids:  # one token an id, and one more that is none
        admitted = int(np.count_nonzero(collector.admitted_at >= 0))
        asked = counters.prefix_lookup_tokens - admitted if setup.config.prefix_cache else 0
        figures["trace_blocks_asked"] = asked
        figures["trace_blocks_found"] = counters.prefix_hit_tokens
        figures["trace_block_hit_rate"] = _share(counters.prefix_hit_tokens, asked)
    return figures


def _memory(samples: list[Sample], stats: PoolStats) -> Figures:
    """Means over virtual time; waste is of the slots that sequences hold."""
    allocated = np.array([sample.slots_allocated for sample in samples], np.float64)
    filled = np.array([sample.slots_filled for sample in samples], np.float64)
    active = np.array([sample.blocks_active for sample in samples], np.float64)
    saved = np.array([sample.blocks_saved for sample in samples], np.float64)
    return {
        "waste": _share(float((allocated - filled).sum()), float(allocated.sum())),
        "slots_allocated_mean": _mean(allocated),
        "slots_filled_mean": _mean(filled),
        "blocks_active_mean": _mean(active),
        "blocks_active_most": _most(active),
        "blocks_saved_by_sharing_mean": _mean(saved),
        "blocks_saved_by_sharing_most": _most(saved),
        "blocks_allocated": stats.counters.blocks_allocated,
        "forks": stats.counters.forks,
        "blocks_saved_by_forks": stats.counters.blocks_saved_by_forks,
        "copies_on_write": stats.counters.copies_on_write,
    }


def _preemption(stats: PoolStats) -> Figures:
    """By mode: how often and why, what was estimated and what it cost in virtual seconds."""
    counters, record = stats.counters, stats.preemption
    return {
        "count": {
            mode.value: sum(count for (m, _), count in record.counts.items() if m is mode) for mode in Mode
        },
        "by_reason": {
            f"{mode.value}, {reason.value}": count for (mode, reason), count in record.counts.items() if count
        },
        "estimated_s": {mode.value: record.estimated[mode] for mode in Mode},
        "cost_s": {mode.value: record.cost[mode] for mode in Mode},
        "thrown_away_tokens": counters.preempted_tokens,
        "found_again_tokens": counters.recompute_hit_tokens,
        "recomputed_tokens": counters.recomputed_tokens,
        "blocks_swapped_out": counters.blocks_swapped_out,
        "blocks_swapped_in": counters.blocks_swapped_in,
        "overshoot_tokens": counters.overshoot_tokens,
    }


def _latency(collector: Collector) -> Figures:
    arrived = collector.arrived_at
    served = collector.first_token_at >= 0
    ended = served & (collector.ended_at >= 0)
    admitted = collector.admitted_at >= 0
    gaps = np.concatenate(collector.gaps) if collector.gaps else np.empty(0)
    return {
        "queue_wait_s": _spread((collector.admitted_at - arrived)[admitted]),
        "time_to_first_token_s": _spread((collector.first_token_at - arrived)[served]),
        "inter_token_s": _spread(gaps),
        "request_s": _spread((collector.ended_at - arrived)[ended]),
    }


def _throughput(collector: Collector, stats: PoolStats) -> Figures:
    seconds, steps, counters = collector.seconds, collector.steps, stats.counters
    return {
        "seconds": seconds,
        "worker_busy": _share(collector.step_seconds, seconds),
        "generated_tokens": counters.generated_tokens,
        "generated_tokens_per_s": _share(counters.generated_tokens, seconds),
        "computed_prompt_tokens": counters.prompt_tokens_computed,
        "steps": steps,
        "step_s_mean": _share(collector.step_seconds, steps),
        "rows_mean": _share(collector.step_rows, steps),
        "rows_most": collector.most_rows,
        "tokens_per_step_mean": _share(collector.step_tokens, steps),
        "requests_running_mean": _mean(np.array([sample.running for sample in collector.samples], float)),
        "requests_running_most": max((sample.running for sample in collector.samples), default=0),
    }


def _spread(values: FloatArray) -> Figures | None:
    if not len(values):
        return None
    percentiles = np.percentile(values, PERCENTILES)
    named = {f"p{name}": float(value) for name, value in zip(PERCENTILES, percentiles, strict=True)}
    return {"count": len(values), "mean": float(values.mean()), **named, "most": float(values.max())}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: FloatArray) -> float | None:
    return float(values.mean()) if len(values) else None


def _most(values: FloatArray) -> float | None:
    return float(values.max()) if len(values) else None

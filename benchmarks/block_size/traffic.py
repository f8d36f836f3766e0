"""Block sizes over real traffic: waste, tables, plans and hit rates, from the simulator.

Owns which traces and pools are compared; measures no time. Invariant: every block size sees the same
requests, and every figure is exact for its trace: two runs give the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from scheduler_svc.core.plan import SchedulerConfig, StepPlan
from scheduler_svc.simulate.collector import Collector
from scheduler_svc.simulate.readers import ReadOptions, load_encoder, read_trace
from scheduler_svc.simulate.results import Figures, figures_of
from scheduler_svc.simulate.runs import contiguous, unbounded
from scheduler_svc.simulate.simulator import Setup, Simulator
from scheduler_svc.simulate.trace import Trace
from scheduler_svc.simulate.worker_model import H200_QWEN3_06B
from scheduler_svc.wire import encode_plan

REPOSITORY = Path(__file__).resolve().parents[2]
EXCERPTS = REPOSITORY / "tests" / "data" / "traces"
MODEL = REPOSITORY / "models" / "SmolLM2-135M-Instruct"
FILES = {
    "azure": ("azure2023_conv_first500.csv", "azure2023_conv.csv.gz"),
    "mooncake": ("mooncake_conversation_first200.jsonl", "mooncake_conversation.jsonl.gz"),
    "weka": ("weka_agentic_coding_8.jsonl.gz", "weka_agentic_coding_60.jsonl.gz"),
    "sessions": ("lmcache_agent_sessions.jsonl.gz", "lmcache_agent_sessions.jsonl.gz"),
}
"""By name: the excerpt that is committed, and the whole file."""

AZURE_REQUESTS = 5000
"""Of the Azure trace: enough for its distribution of lengths."""

BUSY = {"azure": 12.0, "sessions": 1.0}
"""Arrivals of the distributions of lengths, scaled so that tens of requests run at once."""

Note = Callable[[str], None]


def load(name: str, folder: Path | None) -> Trace:
    """A trace: the whole file where `folder` has it, else the excerpt."""
    excerpt, whole = FILES[name]
    path = folder / whole if folder is not None and (folder / whole).exists() else EXCERPTS / excerpt
    encode = load_encoder(MODEL) if name == "sessions" else None
    limit = AZURE_REQUESTS if name == "azure" else 0
    return read_trace(path, options=ReadOptions(limit, session_interval=1.0, encode=encode))


@dataclass
class PlanMeter(Collector):
    """A collector that encodes every plan as the service would, and weighs it."""

    decode_bytes: list[int] = field(default_factory=list)
    all_bytes: list[int] = field(default_factory=list)
    previous: StepPlan | None = None

    def sent(self, plan: StepPlan, seconds: float) -> None:
        super().sent(plan, seconds)
        size = encode_plan(plan, self.previous).ByteSize()
        self.previous = plan
        self.all_bytes.append(size)
        if len(plan.input_ids) == len(plan.rows):
            self.decode_bytes.append(size)


def fragmentation(name: str, trace: Trace, sizes: tuple[int, ...], note: Note) -> list[dict[str, Any]]:
    """Waste, tables and plans at each block size, on a pool without bound."""
    rows = []
    for size in sizes:
        note(f"{name}, waste at {size}")
        longest = max(request.prompt_len + max(1, request.output_len) for request in trace.requests)
        setup = Setup(SchedulerConfig(), size, unbounded(trace, size), longest, arrival_scale=BUSY[name])
        by_arrival = trace.by_arrival()
        meter = PlanMeter(len(trace.requests), by_arrival.requests[-1].arrival / BUSY[name])
        Simulator(by_arrival, setup, H200_QWEN3_06B, meter).run()
        figures = figures_of(str(size), setup, meter)
        running = figures["throughput"]["requests_running_mean"]
        held = figures["memory"]["blocks_active_mean"] + figures["memory"]["blocks_saved_by_sharing_mean"]
        rows.append(
            {
                "block_size": size,
                "waste": figures["memory"]["waste"],
                "requests_running_mean": running,
                "table_bytes_per_request": 4 * held / running,
                "plan_bytes_per_step": float(np.mean(meter.all_bytes)),
                "plan_bytes_per_decode_step": float(np.mean(meter.decode_bytes)),
                "rows_per_step": figures["throughput"]["rows_mean"],
            }
        )
    return rows


def hit_rates(name: str, trace: Trace, sizes: tuple[int, ...], note: Note) -> list[dict[str, Any]]:
    """Token hit rates, one request at a time on a pool without bound, with and without matches inside a
    block.
    """
    trace = _without_made_up_outputs(trace)
    rows = []
    for size in sizes:
        note(f"{name}, hit rate at {size}")
        rows.append(
            {
                "block_size": size,
                "whole_blocks": _hit_rate(trace, size, inside=False),
                "inside_blocks": _hit_rate(trace, size, inside=True),
            }
        )
    return rows


def _hit_rate(trace: Trace, size: int, *, inside: bool) -> float:
    longest = max(request.prompt_len + max(1, request.output_len) for request in trace.requests)
    config = SchedulerConfig(max_num_batched_tokens=1 << 19, depth=1, match_inside_blocks=inside)
    setup = Setup(config, size, unbounded(trace, size), longest, one_at_a_time=True)
    collector = Collector(len(trace.requests), 1e6)
    Simulator(trace, setup, H200_QWEN3_06B, collector).run()
    rate: float = figures_of(str(size), setup, collector)["prefix"]["hit_rate"]
    return rate


def _without_made_up_outputs(trace: Trace) -> Trace:
    """One token of output where the trace does not say which: no prompt ever finds them."""
    short = (r if r.output is not None else replace(r, output_len=1) for r in trace.requests)
    return replace(trace, requests=tuple(short))


def baseline(
    trace: Trace, sizes: tuple[int, ...], pool_tokens: int, limits: tuple[int, ...], note: Note
) -> list[dict[str, Any]]:
    """Paged pools (which the limit does not touch, so at the first one only) beside contiguous reservations,
    all of equal memory, with requests that give up waiting.
    """
    rows: list[dict[str, Any]] = []
    by_arrival = trace.by_arrival()
    for limit in limits:
        for size in (*(sizes if limit == limits[0] else ()), 0):
            note(f"limit {limit}, {size or 'contiguous'}")
            setup = Setup(
                SchedulerConfig(), size or 1, pool_tokens // (size or 1), limit, BUSY["azure"],
                queue_timeout=10.0,
            )  # fmt: skip
            setup = setup if size else contiguous(setup, pool_tokens)
            collector = Collector(len(trace.requests), by_arrival.requests[-1].arrival / BUSY["azure"])
            Simulator(by_arrival, setup, H200_QWEN3_06B, collector).run()
            rows.append(_compared(limit, size, figures_of(str(size), setup, collector)))
    return rows


def _compared(limit: int, size: int, figures: Figures) -> dict[str, Any]:
    first = figures["latency"]["time_to_first_token_s"]
    return {
        "max_model_len": limit,
        "block_size": size or "contiguous",
        "requests": figures["requests"]["offered"],
        "refused": sum(figures["requests"]["refused"].values()),
        "gave_up_waiting": figures["requests"]["gave_up_waiting"],
        "running_mean": figures["throughput"]["requests_running_mean"],
        "running_most": figures["throughput"]["requests_running_most"],
        "waste": figures["memory"]["waste"],
        "preemptions": sum(figures["preemption"]["count"].values()),
        "first_token_p50_s": first["p50"],
        "first_token_p99_s": first["p99"],
        "tokens_per_s": figures["throughput"]["generated_tokens_per_s"],
    }

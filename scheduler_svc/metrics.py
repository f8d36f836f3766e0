"""What the shell counts: steps, requests, latencies.

Owns the shell's counters and histograms as plain numbers; knows neither Prometheus nor the core. Invariant:
every label value exists from the start, and none names a request, a tenant or a prompt.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from scheduler_svc.core.plan import StepPlan

OUTCOMES = (
    "stop", "length", "aborted", "kv_pool", "error", "cancelled", "deadline",
    "queue_timeout", "stream_backlog", "worker_lost", "model_changed", "drained",
)  # fmt: skip
REJECTIONS = (
    "INVALID_FIELD", "INVALID_GRAMMAR", "EXCEEDS_MODEL_LEN", "EXCEEDS_KV_POOL", "EXCEEDS_ROWS",
    "REQUEST_ID_LIVE", "QUEUE_FULL", "QUEUE_TIMEOUT", "GRAMMAR_BACKLOG", "DRAINING", "WORKER_LOST", "OTHER",
)  # fmt: skip
STEP_KINDS = ("prefill", "decode", "mixed", "transfer")
ODDITIES = (
    "stale_session", "unexpected_step", "out_of_order", "unexpected_message", "unknown_row",
    "malformed_tokens", "missing_tokens", "extra_tokens", "invalid_token",
    "missing_logprobs", "malformed_transfers",
)  # fmt: skip
INVARIANTS = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "other")
STEP_FAILURES = ("INVALID_PLAN", "STALE_SESSION", "OUT_OF_MEMORY", "DEVICE_ERROR", "UNSPECIFIED")
"""UNSPECIFIED: a worker's own, or an answer that breaks the protocol."""

_FAST = (
    1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3,
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
_SLOW = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0)
_SIZES = tuple(float(1 << power) for power in range(17))


class Histogram:
    """Counts of values up to each bound (inclusive), their sum and their number."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_many(self, values: Sequence[float]) -> None:
        """The same for many values at once."""
        if len(values) < 8:
            for value in values:
                self.observe(value)
            return
        found = np.bincount(np.searchsorted(self.bounds, values), minlength=len(self.counts))
        self.counts = [old + new for old, new in zip(self.counts, found.tolist(), strict=True)]
        self.total += float(sum(values))

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, values up to it) pairs as Prometheus wants them, the last one +Inf."""
        running, pairs = 0, []
        for bound, count in zip([*map(repr, self.bounds), "+Inf"], self.counts, strict=True):
            running += count
            pairs.append((bound, float(running)))
        return pairs


class ShellMetrics:
    """All numbers of the shell. Written by the event loop alone; read there too."""

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.rejections = dict.fromkeys(REJECTIONS, 0)
        self.steps = dict.fromkeys(STEP_KINDS, 0)
        self.oddities = dict.fromkeys(ODDITIES, 0)
        self.step_failures = dict.fromkeys(STEP_FAILURES, 0)
        self.prompt_tokens = {"computed": 0, "cached": 0}
        self.delivered_tokens = 0
        self.undelivered_tokens = 0
        self.leaked_blocks = 0
        self.invariant_violations = dict.fromkeys(INVARIANTS, 0)
        self.epoch_changes = 0
        self.sessions = 0
        self.batch_sequences = Histogram(_SIZES)
        self.batch_tokens = Histogram(_SIZES)
        self.plan_bytes = Histogram([64.0 * 4**power for power in range(10)])
        self.schedule_seconds = Histogram(_FAST)
        self.worker_rpc_seconds = Histogram(_FAST)
        self.step_forward_seconds = Histogram(_FAST)
        self.step_gap_seconds = Histogram(_FAST)
        self.queue_wait_seconds = Histogram(_SLOW)
        self.time_to_first_token_seconds = Histogram(_SLOW)
        self.inter_token_latency_seconds = Histogram(_FAST)
        self.request_seconds = Histogram(_SLOW)

    def step_sent(self, plan: StepPlan, schedule_seconds: float, plan_bytes: int) -> None:
        """A plan has left."""
        rows, tokens = int(plan.rows.size), int(plan.input_ids.size)
        if not rows:
            kind = "transfer"
        elif tokens == rows:
            kind = "decode"
        else:
            kind = "mixed" if rows > 1 and int(plan.query_lens.min()) == 1 else "prefill"
        self.steps[kind] += 1
        self.batch_sequences.observe(rows)
        self.batch_tokens.observe(tokens)
        self.schedule_seconds.observe(schedule_seconds)
        self.plan_bytes.observe(plan_bytes)

    def rejected(self, reason: str) -> None:
        """A request was not taken. A reason without a label of its own counts as OTHER."""
        self.rejections[reason if reason in self.rejections else "OTHER"] += 1

    def step_failed(self, reason: str) -> None:
        self.step_failures[reason if reason in self.step_failures else "UNSPECIFIED"] += 1

    def invariant_broken(self, violation: str) -> None:
        """A check found something; its text begins with the invariant's name where it has one."""
        name = violation.partition(":")[0]
        self.invariant_violations[name if name in self.invariant_violations else "other"] += 1

"""Recording and alert rules for Prometheus: `python -m deploy.rules` writes deploy/prometheus-rules.yml.

Owns each alert's condition, its meaning and the first move of whoever is woken; knows neither Prometheus'
server nor the services. Invariant: the file in the repository is what this writes, and every alert has a case
in which it fires and one in which it does not (tests/unit/deploy/rule_cases.py).
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("prometheus-rules.yml")
RUNBOOK = "docs/metrics.md"


@dataclass(frozen=True, slots=True)
class Recording:
    """name: level:metric:operation, the form that Prometheus recommends."""

    name: str
    expression: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Alert:
    """hold: how long the condition must hold. severity: page (someone must act now) or ticket (this week)."""

    name: str
    expression: str
    hold: str
    severity: str
    meaning: str
    first_move: str


RECORDINGS = (
    Recording(
        "octavo:kv_blocks_available:ratio",
        'sum(octavo_kv_blocks{state=~"free|evictable"}) / sum(octavo_kv_blocks_capacity)',
        "Free and evictable blocks as a part of the pool.",
    ),
    Recording(
        "octavo:prefix_hit_tokens:ratio_rate5m",
        "sum(rate(octavo_prefix_hit_tokens_total[5m])) / sum(rate(octavo_prefix_lookup_tokens_total[5m]))",
        "Prefix hits of looked-up tokens.",
    ),
    Recording(
        "octavo:preempted_tokens:ratio_rate5m",
        "sum(rate(octavo_preempted_tokens_total[5m])) / "
        'clamp_min(sum(rate(octavo_generated_tokens_total[5m])) + '
        'sum(rate(octavo_prompt_tokens_total{source="computed"}[5m])), 0.001)',
        "Computed tokens thrown away by preemption, of the useful ones.",
    ),
    Recording(
        "octavo:time_to_first_token_seconds:p95_rate5m",
        "histogram_quantile(0.95, sum by (le) (rate(octavo_time_to_first_token_seconds_bucket[5m])))",
        "95th percentile of the time to the first token.",
    ),
    Recording(
        "octavo:queue_wait_seconds:p95_rate5m",
        "histogram_quantile(0.95, sum by (le) (rate(octavo_queue_wait_seconds_bucket[5m])))",
        "95th percentile of the wait in the queue.",
    ),
)  # fmt: skip

ALERTS = (
    Alert(
        "OctavoDown", 'up{job="scheduler"} == 0', "1m", "page",
        "The scheduler does not answer scrapes: nobody is served.",
        "Is the process there? Its last log lines say why it ended; `octavo doctor` looks at ports and "
        "settings.",
    ),
    Alert(
        "OctavoNoWorker", "octavo_worker_session_up == 0", "2m", "page",
        "The scheduler has no worker: requests wait, and fail after the grace period.",
        "Look at the worker's process and log; the scheduler's log says why it could not connect.",
    ),
    Alert(
        "OctavoGatewayDown", 'up{job="gateway"} == 0', "1m", "page",
        "The HTTP gateway does not answer scrapes: nobody is served over HTTP.",
        "Is the process there? Its last log lines say why it ended; `octavo doctor --gateway URL` looks at "
        "it.",
    ),
    Alert(
        "OctavoGatewayErrors",
        'sum(rate(octavo_gateway_requests_total{route=~"/v1/.*",code=~"5..|stream_failed"}[5m])) / '
        'sum(rate(octavo_gateway_requests_total{route=~"/v1/.*"}[5m])) > 0.05',
        "5m", "page",
        "More than one HTTP request in twenty fails for no fault of its client.",
        "503 and stream_failed: look at the scheduler and its worker first (OctavoDown, OctavoNoWorker); "
        "500: the gateway's log.",
    ),
    Alert(
        "OctavoInvariantBroken",
        "sum(increase(octavo_invariant_violations_total[10m])) > 0 or sum(octavo_kv_blocks_leaked) > 0",
        "0m", "page",
        "The block manager's books do not add up: outputs may be wrong.",
        "Restart the scheduler, keep its log (it names the invariant), and report it; with --record it can "
        "be replayed.",
    ),
    Alert(
        "OctavoStepsFail", "sum(increase(octavo_step_failures_total[5m])) > 0", "0m", "page",
        "A whole step failed: every request in it ended with an error.",
        "The reason label says what: OUT_OF_MEMORY - lower --gpu-memory-utilization; DEVICE_ERROR - look "
        "at the device.",
    ),
    Alert(
        "OctavoWorkerRestarts", "sum(increase(octavo_worker_epoch_changes_total[1h])) >= 3", "0m", "ticket",
        "The worker was restarted three times in an hour; each time every context is computed again.",
        "Why did it end? Its exit status and log; the kernel's log for the memory killer.",
    ),
    Alert(
        "OctavoPoolFull",
        "octavo:kv_blocks_available:ratio < 0.05 and sum(octavo_requests_waiting) > 0", "10m", "ticket",
        "The KV pool is full of running contexts and requests wait for blocks.",
        "The pool page and ExplainRequest show who holds what; a larger pool, a smaller --max-model-len, "
        "more workers.",
    ),
    Alert(
        "OctavoPreemptionThrash", "octavo:preempted_tokens:ratio_rate5m > 0.2", "10m", "ticket",
        "More than a fifth of the work is thrown away by preemption.",
        "Raise --watermark-blocks or lower --max-num-seqs, so that fewer sequences grow at once.",
    ),
    Alert(
        "OctavoQueueFull",
        'sum(rate(octavo_admission_rejections_total{reason="QUEUE_FULL"}[5m])) > 0', "5m", "page",
        "Requests are refused because too many wait.",
        "Is the worker slow (dashboard step pipeline) or is it load? Then more workers; the limit is "
        "--max-queue-requests.",
    ),
    Alert(
        "OctavoSlowFirstToken", "octavo:time_to_first_token_seconds:p95_rate5m > 10", "10m", "ticket",
        "One request in twenty waits more than 10 seconds for its first token.",
        "Compare with octavo:queue_wait_seconds:p95_rate5m: waiting in the queue, or long prompts.",
    ),
    Alert(
        "OctavoDeviceIdle",
        "sum(rate(octavo_step_gap_seconds_sum{job=\"scheduler\"}[5m])) / "
        "(sum(rate(octavo_step_gap_seconds_sum{job=\"scheduler\"}[5m])) + "
        "sum(rate(octavo_step_forward_seconds_sum{job=\"scheduler\"}[5m]))) > 0.3 "
        "and sum(octavo_requests_waiting) > 0",
        "10m", "ticket",
        "The device is idle for three tenths of the time although requests wait.",
        "Is --depth 1? Is the scheduler short of processor time, or the link slow (dashboard step pipeline)?",
    ),
    Alert(
        "OctavoOddAnswers", "sum(increase(octavo_worker_oddities_total[10m])) > 0", "0m", "ticket",
        "The worker's answers did not fit its plans; they were repaired or left out.",
        "Are scheduler and worker of the same release? The kind label says what was odd.",
    ),
    Alert(
        "OctavoSlowReaders",
        'sum(rate(octavo_requests_total{outcome="stream_backlog"}[5m])) > 0', "5m", "ticket",
        "Clients read too slowly and lose their streams.",
        "Which client? Its log says STREAM_BACKLOG; the limits are --stream-backlog-tokens and "
        "--stream-stall-seconds.",
    ),
)  # fmt: skip


def text() -> str:
    """The file's content. JSON is YAML, and needs no library to write."""
    record = [{"record": one.name, "expr": one.expression} for one in RECORDINGS]
    alert = [
        {
            "alert": one.name,
            "expr": one.expression,
            "for": one.hold,
            "labels": {"severity": one.severity},
            "annotations": {"summary": one.meaning, "first_move": one.first_move, "runbook": RUNBOOK},
        }
        for one in ALERTS
    ]
    groups = [{"name": "octavo-recordings", "rules": record}, {"name": "octavo-alerts", "rules": alert}]
    head = "# Written by `python -m deploy.rules`; JSON, which is YAML too.\n"
    return head + json.dumps({"groups": groups}, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Where the time of a step goes, and whether the device ever waits.

Owns its panels; knows no other dashboard. Invariant: each panel's description names its metrics.
"""

from deploy.dashboards.panel import SCHEDULER, Dashboard, Panel, mean, quantiles, rate

_OVERHEAD = f"clamp_min({mean('octavo_worker_rpc_seconds')} - {mean('octavo_step_forward_seconds')}, 0)"

DASHBOARD = Dashboard(
    "octavo-step-pipeline",
    "Octavo: step pipeline",
    (
        Panel(
            "A step's time", "s",
            "Means, stacked: octavo_schedule_seconds (planning), octavo_step_forward_seconds (the device), "
            "octavo_worker_rpc_seconds less the forward pass (wire, queue and second step in flight), "
            "octavo_step_gap_seconds (device idle).",
            (
                ("schedule", mean("octavo_schedule_seconds")),
                ("forward", mean("octavo_step_forward_seconds")),
                ("wire and queue", _OVERHEAD),
                ("device idle", mean("octavo_step_gap_seconds")),
            ),
            width=16, stacked=True,
        ),
        Panel(
            "Steps a second", "ops", "octavo_steps_total by kind.",
            (("{{kind}}", rate("octavo_steps_total", by="kind")),), stacked=True,
        ),
        Panel(
            "Planning", "s", "Quantiles of octavo_schedule_seconds.", quantiles("octavo_schedule_seconds")
        ),
        Panel(
            "Plan to result", "s", "Quantiles of octavo_worker_rpc_seconds.",
            quantiles("octavo_worker_rpc_seconds"),
        ),
        Panel(
            "Forward", "s", "Quantiles of octavo_step_forward_seconds, measured by the worker.",
            quantiles("octavo_step_forward_seconds", SCHEDULER),
        ),
        Panel(
            "Device idle between steps", "s", "Quantiles of octavo_step_gap_seconds, measured by the worker.",
            quantiles("octavo_step_gap_seconds", SCHEDULER),
        ),
        Panel(
            "Sequences of a step", "short", "Quantiles of octavo_batch_sequences.",
            quantiles("octavo_batch_sequences"),
        ),
        Panel(
            "Tokens of a step", "short", "Quantiles of octavo_batch_tokens.", quantiles("octavo_batch_tokens")
        ),
        Panel("Plan size", "bytes", "Quantiles of octavo_plan_bytes.", quantiles("octavo_plan_bytes")),
        Panel(
            "Time by operation", "s",
            "Mean octavo_worker_kernel_seconds of a step by op: block moves, model, sample.",
            (
                (
                    "{{op}}",
                    f"{rate('octavo_worker_kernel_seconds_sum', by='op')} / "
                    f"{rate('octavo_worker_kernel_seconds_count', by='op')}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Overshoot", "short",
            "octavo_overshoot_tokens_total, a second: sampled for a sequence that had ended, and dropped.",
            (("tokens", rate("octavo_overshoot_tokens_total")),),
        ),
        Panel(
            "Trouble", "short",
            "In the last 5 minutes: octavo_step_failures_total, octavo_rows_failed_total, "
            "octavo_worker_oddities_total, octavo_worker_failed_rows_total.",
            (
                ("failed steps", "sum(increase(octavo_step_failures_total[5m]))"),
                ("failed rows", "sum(increase(octavo_rows_failed_total[5m]))"),
                ("odd answers", "sum(increase(octavo_worker_oddities_total[5m]))"),
                ("rows failed at the worker", "sum(increase(octavo_worker_failed_rows_total[5m]))"),
            ),
        ),
        Panel(
            "Sessions", "short",
            "octavo_worker_session_up; in the last hour octavo_worker_sessions_total, "
            "octavo_worker_epoch_changes_total (restarted workers) and "
            "octavo_worker_sessions_accepted_total.",
            (
                ("up", "max(octavo_worker_session_up)"),
                ("begun", "sum(increase(octavo_worker_sessions_total[1h]))"),
                ("restarts", "sum(increase(octavo_worker_epoch_changes_total[1h]))"),
                ("accepted", "sum(increase(octavo_worker_sessions_accepted_total[1h]))"),
            ),
        ),
        Panel(
            "Worker's steps", "ops",
            "octavo_worker_steps_total by outcome, and octavo_worker_graph_replays_total: those that ran as "
            "one CUDA graph.",
            (
                ("{{outcome}}", rate("octavo_worker_steps_total", by="outcome")),
                ("as a graph", rate("octavo_worker_graph_replays_total")),
            ),
            stacked=True, lines=("as a graph",),
        ),
        Panel(
            "Worker memory", "bytes", "octavo_worker_memory_bytes by use.",
            (("{{use}}", "sum by (use) (octavo_worker_memory_bytes)"),), stacked=True,
        ),
    ),
)  # fmt: skip

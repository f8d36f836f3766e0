"""What clients get: rates, outcomes, latencies, the queue.

Owns its panels; knows no other dashboard. Invariant: each panel's description names its metrics.
"""

from deploy.dashboards.panel import Dashboard, Panel, quantiles, rate

DASHBOARD = Dashboard(
    "octavo-service",
    "Octavo: service",
    (
        Panel(
            "Worker session", "bool_on_off", "octavo_worker_session_up: 1 while the scheduler has a worker.",
            (("up", "max(octavo_worker_session_up)"),), "stat", 4,
        ),
        Panel(
            "Running", "short", "octavo_requests_running: sequences that hold a row.",
            (("running", "sum(octavo_requests_running)"),), "stat", 4,
        ),
        Panel(
            "Waiting", "short", "octavo_requests_waiting: sequences that wait for a row.",
            (("waiting", "sum(octavo_requests_waiting)"),), "stat", 4,
        ),
        Panel(
            "Generated", "short", "octavo_generated_tokens_total, a second.",
            (("tokens a second", rate("octavo_generated_tokens_total")),), "stat", 4,
        ),
        Panel(
            "Time to first token", "s", "The 95th percentile of octavo_time_to_first_token_seconds.",
            (quantiles("octavo_time_to_first_token_seconds")[1],), "stat", 4,
        ),
        Panel(
            "Refused", "reqps", "octavo_admission_rejections_total, a second.",
            (("a second", rate("octavo_admission_rejections_total")),), "stat", 4,
        ),
        Panel(
            "Requests ended", "reqps", "octavo_requests_total by outcome.",
            (("{{outcome}}", rate("octavo_requests_total", by="outcome")),), width=12, stacked=True,
        ),
        Panel(
            "Requests refused", "reqps", "octavo_admission_rejections_total by reason.",
            (("{{reason}}", rate("octavo_admission_rejections_total", by="reason")),), width=12, stacked=True,
        ),
        Panel(
            "Queue", "short", "octavo_requests_running and octavo_requests_waiting by reason.",
            (
                ("running", "sum(octavo_requests_running)"),
                ("waiting: {{reason}}", "sum by (reason) (octavo_requests_waiting)"),
            ),
        ),
        Panel(
            "Wait in the queue", "s", "Quantiles of octavo_queue_wait_seconds: arrival to first admission.",
            quantiles("octavo_queue_wait_seconds"),
        ),
        Panel(
            "Tokens a second", "short",
            "octavo_generated_tokens_total, octavo_delivered_tokens_total (put into clients' streams), and "
            "octavo_prompt_tokens_total by source.",
            (
                ("generated", rate("octavo_generated_tokens_total")),
                ("delivered", rate("octavo_delivered_tokens_total")),
                ("prompt: {{source}}", rate("octavo_prompt_tokens_total", by="source")),
            ),
        ),
        Panel(
            "Time to first token", "s", "Quantiles of octavo_time_to_first_token_seconds.",
            quantiles("octavo_time_to_first_token_seconds"),
        ),
        Panel(
            "Time between tokens", "s", "Quantiles of octavo_inter_token_latency_seconds.",
            quantiles("octavo_inter_token_latency_seconds"),
        ),
        Panel(
            "Arrival to end", "s", "Quantiles of octavo_request_seconds.", quantiles("octavo_request_seconds")
        ),
        Panel(
            "HTTP answers", "reqps",
            "octavo_gateway_requests_total by code: the status, or how it ended without one.",
            (("{{code}}", rate("octavo_gateway_requests_total", by="code")),), stacked=True,
        ),
        Panel(
            "HTTP requests in progress", "short", "octavo_gateway_requests_open by route.",
            (("{{route}}", "sum by (route) (octavo_gateway_requests_open)"),), stacked=True,
        ),
        Panel(
            "HTTP completions", "s",
            "Quantiles of octavo_gateway_request_seconds of completions and chats: from a request's head to "
            "the end of its answer.",
            quantiles("octavo_gateway_request_seconds", '{route=~"/v1/.*completions"}'),
        ),
    ),
)  # fmt: skip

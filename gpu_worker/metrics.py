"""The worker's Prometheus metrics, on an HTTP port.

Owns names and buckets; knows no plan. Invariant: every series exists from the start, and none is named
after a row.
"""

from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    start_http_server,
)

from gpu_worker.errors import WorkerError
from gpu_worker.kv_pool import PoolSize
from gpu_worker.model_runner import StepOutcome

_SECONDS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
OPERATIONS = ("block_moves", "model", "sample")
OUTCOMES = ("ok", "invalid_plan", "stale_session", "out_of_memory", "device_error")


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """The HTTP server and the port it has."""

    server: WSGIServer
    port: int

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class WorkerMetrics:
    """What a worker counts. Times in seconds on the device's clock."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._memory = Gauge(
            "octavo_worker_memory_bytes",
            "Device memory by use: weights, activations, graphs, pool, slack of the budget.",
            ["use"],
            registry=self.registry,
        )
        for use in ("weights", "activations", "graphs", "pool", "slack"):
            self._memory.labels(use)
        self._forward = self._histogram("octavo_step_forward_seconds", "Forward pass and sampling of a step.")
        self._gap = self._histogram(
            "octavo_step_gap_seconds", "Device idle time between two steps of a session."
        )
        self._kernels = Histogram(
            "octavo_worker_kernel_seconds",
            "Time of a step by operation: block moves, model, sample.",
            ["op"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._block_moves, self._model, self._sample = map(self._kernels.labels, OPERATIONS)
        self._steps = Counter(
            "octavo_worker_steps_total", "Steps answered, by outcome.", ["outcome"], registry=self.registry
        )
        for outcome in OUTCOMES:
            self._steps.labels(outcome)
        self._ok = self._steps.labels("ok")
        self._replays = Counter(
            "octavo_worker_graph_replays_total",
            "Steps that ran as one CUDA graph; the others were launched operation by operation.",
            registry=self.registry,
        )
        self._failed_rows = Counter(
            "octavo_worker_failed_rows_total", "Rows failed, by reason.", ["reason"], registry=self.registry
        )
        for reason in ("non_finite_logits", "grammar_failed"):
            self._failed_rows.labels(reason)
        self._sessions = Counter(
            "octavo_worker_sessions_accepted_total",
            "Sessions accepted since the start.",
            registry=self.registry,
        )

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=_SECONDS, registry=self.registry)

    def loaded(self, size: PoolSize) -> None:
        """The memory breakdown, once known."""
        self._memory.labels("weights").set(size.weight_bytes)
        self._memory.labels("activations").set(size.activation_bytes)
        self._memory.labels("graphs").set(size.graph_bytes)
        self._memory.labels("pool").set(size.pool_bytes)
        self._memory.labels("slack").set(size.slack_bytes)

    def session_accepted(self) -> None:
        self._sessions.inc()

    def step_done(self, outcome: StepOutcome) -> None:
        """One step answered with tokens."""
        self._ok.inc()
        if outcome.replayed:
            self._replays.inc()
        if outcome.failed_rows:
            barred = len(outcome.barred_rows.intersection(outcome.failed_rows))
            self._failed_rows.labels("grammar_failed").inc(barred)
            self._failed_rows.labels("non_finite_logits").inc(len(outcome.failed_rows) - barred)
        self._forward.observe(outcome.forward_seconds)
        self._gap.observe(outcome.gap_seconds)
        self._block_moves.observe(outcome.block_move_seconds)
        self._model.observe(outcome.forward_seconds - outcome.sample_seconds)
        self._sample.observe(outcome.sample_seconds)

    def step_failed(self, outcome: str) -> None:
        """One step answered with a failure; outcome is one of OUTCOMES."""
        self._steps.labels(outcome).inc()

    def serve(self, host: str, port: int) -> MetricsServer:
        """Starts the HTTP server in a thread of its own. Raises WorkerError when the port is taken."""
        try:
            server, _ = start_http_server(port, host, registry=self.registry)
        except OSError as error:
            raise WorkerError(
                f"--metrics-port {port}: {host}:{port} cannot be bound: {error.strerror}"
            ) from error
        return MetricsServer(server, int(server.server_port))

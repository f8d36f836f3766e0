"""What the gateway counts, for Prometheus.

Owns its registry; knows no endpoint's work. Invariant: every label set exists from the start, and none names
a client, a key or a model.
"""

from collections.abc import Iterable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

ROUTES = (
    "/v1/models", "/v1/models/{model}", "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize",
    "/health", "/metrics", "/openapi.json",
)  # fmt: skip
DISCONNECTED, STREAM_FAILED, OTHER = "disconnected", "stream_failed", "other"
CODES = (
    "200", "400", "401", "404", "408", "409", "413", "415", "429", "500", "503", "504",
    DISCONNECTED, STREAM_FAILED, OTHER,
)  # fmt: skip
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """Counters of one process."""

    def __init__(self, routes: Iterable[str] = ROUTES) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "octavo_gateway_requests",
            "Requests that ended, by how: the status, disconnected, or stream_failed after a status of 200.",
            ("route", "code"),
            registry=self.registry,
        )
        self._open = Gauge(
            "octavo_gateway_requests_open", "Requests in progress.", ("route",), registry=self.registry
        )
        self._seconds = Histogram(
            "octavo_gateway_request_seconds",
            "Time from a request's head to the end of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        for route in routes:
            self._open.labels(route)
            self._seconds.labels(route)
            for code in CODES:
                self._requests.labels(route, code)

    def began(self, route: str) -> None:
        self._open.labels(route).inc()

    def ended(self, route: str, code: str, seconds: float) -> None:
        """code: one of CODES; any other counts as OTHER."""
        self._open.labels(route).dec()
        self._requests.labels(route, code if code in CODES else OTHER).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """The exposition, with the process's own metrics."""
        process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=process)
        return generate_latest(self.registry) + generate_latest(process)

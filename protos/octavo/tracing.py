"""OpenTelemetry spans of one process: made by a service, sent to an OTLP endpoint in the background.

Owns the library's set-up and the spans' times; knows no request. Imported only by a process that traces, for
it needs the extra octavo[tracing]. Invariant: nothing waits for the endpoint but `close`, and that not long.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from octavo.trace_context import TRACEPARENT

Value = str | bool | int | float | tuple[str, ...]
_CLOSE_MILLISECONDS = 3000
_W3C = TraceContextTextMapPropagator()


class Tracing:
    """Makes spans. Times are seconds of `clock`, which need not be those of the day.

    exporter: sends each span at once, for tests; the sampler and whatever else OpenTelemetry reads from
    OTEL_* variables holds.
    """

    def __init__(
        self,
        service: str,
        endpoint: str,
        clock: Callable[[], float] = time.monotonic,
        exporter: SpanExporter | None = None,
    ) -> None:
        """endpoint: http://host:port (no TLS) or https://host:port of an OTLP/gRPC collector."""
        name, release = f"octavo-{service}", version("octavo")
        resource = Resource.create(
            {SERVICE_NAME: name, "service.namespace": "octavo", SERVICE_VERSION: release}
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        if exporter is None:
            insecure = not endpoint.startswith("https://")
            batches = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=insecure))
            self._provider.add_span_processor(batches)
        else:
            self._provider.add_span_processor(SimpleSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("octavo", release)
        self._clock = clock
        self._offset = time.time() - clock()

    def nanoseconds(self, at: float) -> int:
        """A time of the clock as OpenTelemetry has it."""
        return int((at + self._offset) * 1e9)

    def span(
        self,
        name: str,
        kind: SpanKind,
        parent: str | Span,
        at: float,
        attributes: Mapping[str, Value],
        links: Iterable[Span] = (),
    ) -> Span:
        """A span that began at a time. parent: a traceparent (empty: a trace of its own) or a span."""
        if isinstance(parent, str):
            context = _W3C.extract({TRACEPARENT: parent} if parent else {})
        else:
            context = trace.set_span_in_context(parent)
        return self._tracer.start_span(
            name,
            context,
            kind,
            attributes=dict(attributes),
            links=[Link(span.get_span_context()) for span in links],
            start_time=self.nanoseconds(at),
        )

    def end(self, span: Span, at: float, error: str = "") -> None:
        """Ends a span, with an error when there is one: a machine-readable reason, nothing a user wrote."""
        if error:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(self.nanoseconds(at))

    def close(self) -> None:
        """Sends what is left, for a few seconds at most."""
        self._provider.force_flush(_CLOSE_MILLISECONDS)
        self._provider.shutdown()


def traceparent_of(span: Span) -> str:
    """What a span's children are told."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span))
    return carrier.get(TRACEPARENT, "")

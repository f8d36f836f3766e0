"""An OTLP collector that keeps what it is sent.

Owns the gRPC service; knows no span's meaning. Invariant: spans are kept as they came over the wire.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """spans: (service, span) in the order of their arrival."""

    address: str = ""
    spans: list[tuple[str, Span]] = field(default_factory=list)

    async def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for group in request.resource_spans:
            service = str(values(group.resource.attributes)["service.name"])
            self.spans += [(service, span) for scope in group.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, service: str, name: str) -> list[Span]:
        return [span for owner, span in self.spans if owner == service and span.name == name]


def values(attributes: list[KeyValue]) -> dict[str, object]:
    """Attributes as a dict; arrays as lists of strings."""
    found: dict[str, object] = {}
    for pair in attributes:
        kind = pair.value.WhichOneof("value")
        assert kind is not None
        value = getattr(pair.value, kind)
        found[pair.key] = [one.string_value for one in value.values] if kind == "array_value" else value
    return found


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """A collector on a free port of this machine."""
    server, made = grpc.aio.server(), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    made.address = f"http://127.0.0.1:{port}"
    await server.start()
    try:
        yield made
    finally:
        await server.stop(None)

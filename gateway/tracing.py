"""Spans of HTTP exchanges.

Owns their names and attributes; knows no endpoint. A process that does not trace never imports it. Invariant:
no attribute holds a body, a header's secret or anything else a client wrote, but the id it gave its request.
"""

from http import HTTPStatus

from opentelemetry.trace import Span, SpanKind

from gateway.exchange import REQUEST_ID, Exchange
from octavo.trace_context import current_traceparent
from octavo.tracing import Tracing, traceparent_of


class GatewayTracing:
    """Begins and ends the span of an exchange; what the exchange calls meanwhile is below it."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def began(self, method: str, route: str, now: float) -> Span:
        """The span, below the client's where it sent one; later calls of this task carry it."""
        attributes = {"http.request.method": method, "http.route": route}
        span = self._tracing.span(
            f"{method} {route}", SpanKind.SERVER, current_traceparent.get(), now, attributes
        )
        current_traceparent.set(traceparent_of(span))
        return span

    def ended(self, span: Span, exchange: Exchange, outcome: str, now: float) -> None:
        """outcome: the status, or why there was none."""
        if exchange.status:
            span.set_attribute("http.response.status_code", exchange.status)
        request_id = exchange.answer_headers.get(REQUEST_ID)
        if request_id is not None:
            span.set_attribute("octavo.request_id", request_id)
        good = outcome.isdecimal() and int(outcome) < HTTPStatus.INTERNAL_SERVER_ERROR
        self._tracing.end(span, now, "" if good else outcome)

    def close(self) -> None:
        self._tracing.close()

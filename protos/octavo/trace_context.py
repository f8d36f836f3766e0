"""W3C trace context: the `traceparent` that a call came with, and the one that goes on with it.

Owns the value's form and the variable that carries it through a call; makes no span and needs no tracing
library. Invariant: what is handed on is well formed, for a caller's value that is not is dropped.
"""

import contextvars
import importlib.util
import re
from collections.abc import Iterable

TRACEPARENT = "traceparent"
"""The name of the gRPC metadata and of the HTTP header."""

current_traceparent: contextvars.ContextVar[str] = contextvars.ContextVar("octavo_traceparent", default="")
"""Of the call that this task serves; empty: none."""

_ENDPOINT = re.compile(r"https?://[^/\s]+:\d{1,5}")
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc")
_FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def accepted(value: object) -> str:
    """A caller's traceparent, empty when it is none or not well formed."""
    return value if isinstance(value, str) and _FORM.fullmatch(value) else ""


def outgoing() -> tuple[tuple[str, str], ...] | None:
    """gRPC metadata of a call made on behalf of the present one; None when there is nothing to say."""
    value = current_traceparent.get()
    return ((TRACEPARENT, value),) if value else None


def from_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The traceparent of a call's metadata, empty without one."""
    return accepted(dict(metadata or ()).get(TRACEPARENT))


def checked_endpoint(value: str) -> str:
    """An OTLP endpoint, or empty. Raises ValueError when it is none, or when nothing here can send to it."""
    if value and not _ENDPOINT.fullmatch(value):
        raise ValueError("must be http://host:port or https://host:port of an OTLP/gRPC collector")
    if value and not all(map(_installed, _PACKAGES)):
        raise ValueError("tracing needs OpenTelemetry: pip install 'octavo[tracing]'")
    return value


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of a parent
        return False

"""The shape of a log line and of the line that says "serving", for both services.

Owns the JSON fields and the request id that a line belongs to; knows neither service, and nobody hands it a
prompt. Invariant: one event is one line of JSON, logs on stderr and the serving line alone on stdout.
"""

import contextvars
import json
import logging
import sys
from datetime import UTC, datetime

from octavo.trace_context import current_traceparent

CONTEXT_FIELDS = ("request_id", "step_id", "session_id", "epoch")
"""Attributes of a record (given as `extra=`) that become fields of the line."""

current_request_id: contextvars.ContextVar[str] = contextvars.ContextVar("octavo_request_id", default="")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time (UTC), level, service, logger, message and the context
    fields.
    """

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = current_request_id.get()
        if request_id:
            line["request_id"] = request_id
        traceparent = current_traceparent.get()
        if traceparent:
            line["trace_id"] = traceparent.split("-")[1]
        for name in CONTEXT_FIELDS:
            value = record.__dict__.get(name)
            if value is not None:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(service: str, level: str = "INFO") -> None:
    """Sends every log line and every warning of the process to stderr as JSON. level is a name of the logging
    module.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)


def announce_serving(service: str, listen: str, metrics_port: int) -> None:
    """Writes the one line of stdout that tells a supervisor where a service listens."""
    line = {"event": "serving", "service": service, "listen": listen, "metrics_port": metrics_port}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def epoch_text(epoch: int) -> str:
    """How an epoch or session id (unsigned 64-bit) is written in logs and answers: 16 hex digits."""
    return f"{epoch:016x}"

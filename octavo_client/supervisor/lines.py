"""Log lines and exit codes in words.

Owns the reading of a service's JSON log line; knows no terminal. Invariant: a line that is no JSON is shown
as it is.
"""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass

REFUSED = 2
"""The exit code of a service that refuses its settings."""
_BEFORE_SETTING = re.compile(r"^(python -m \w+|cannot (start|serve)): ")
_CONTEXT = ("request_id", "step_id", "session_id", "epoch")


@dataclass(frozen=True)
class LogLine:
    """What a log line says. clock is HH:MM:SS in UTC, context `name=value` pairs; empty where it has none."""

    clock: str
    level: str
    message: str
    context: str
    detail: str


def parse(text: str) -> LogLine:
    """A service's log line; any other text is its own message with level info."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or "message" not in value:
        return LogLine("", "info", text, "", "")
    time = str(value.get("time", ""))
    context = " ".join(f"{name}={value[name]}" for name in _CONTEXT if name in value)
    return LogLine(
        time[11:19],
        str(value.get("level", "info")),
        str(value["message"]),
        context,
        str(value.get("exception", "")),
    )


def readable(text: str) -> str:
    """A log line as one line for a person: its message, or the last line of its exception."""
    line = parse(text)
    detail = line.detail.strip().splitlines()
    message = f"{line.message} ({detail[-1].strip()})" if detail else line.message
    return " ".join(message.split()) or "it wrote nothing"


def refusal(text: str) -> str:
    """What a service that refuses its settings says of them."""
    return _BEFORE_SETTING.sub("", readable(text))


def describe_exit(code: int) -> str:
    """An exit code of subprocess, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"

"""What the client raises: the project's error tree, rebuilt from a failed call, and what only a client sees.

    octavo.errors.OctavoError         (its leaves, by gRPC status; reason from google.rpc.ErrorInfo)
    |-- Unavailable
    |   |-- ConnectionFailed          nobody answers at the address, or the connection broke
    |   `-- NotReady                  wait_ready's time ran out
    |-- InvalidArgument
    |   `-- BadArgument               a flag or variable of the `octavo` command; exit code 2
    |-- Cancelled                     the call was cancelled at this end
    `-- CallFailed                    a status that the tree has no leaf for; the message names it

Owns the mapping from a call to an exception; knows no service. Invariant: the message is one line that a
person can act on.
"""

from __future__ import annotations

import re
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from octavo.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OctavoError,
    ResourceExhausted,
    StaleEpoch,
    Unavailable,
    Unimplemented,
)

__all__ = [
    "AlreadyExists",
    "BadArgument",
    "CallFailed",
    "Cancelled",
    "ConnectionFailed",
    "DeadlineExceeded",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "NotReady",
    "OctavoError",
    "ResourceExhausted",
    "StaleEpoch",
    "Unavailable",
    "Unimplemented",
    "from_call",
    "from_code",
]


class BadArgument(InvalidArgument):
    default_reason = "BAD_ARGUMENT"


class ConnectionFailed(Unavailable):
    default_reason = "CONNECTION_FAILED"


class NotReady(Unavailable):
    default_reason = "NOT_READY"


class Cancelled(OctavoError):
    status = grpc.StatusCode.CANCELLED
    default_reason = "CANCELLED"


class CallFailed(OctavoError):
    status = grpc.StatusCode.UNKNOWN
    default_reason = "CALL_FAILED"


_LEAVES: tuple[type[OctavoError], ...] = (
    InvalidArgument,
    Unimplemented,
    FailedPrecondition,
    AlreadyExists,
    NotFound,
    ResourceExhausted,
    Unavailable,
    StaleEpoch,
    DeadlineExceeded,
    Internal,
    Cancelled,
)
_BY_NUMBER = {leaf.status.value[0]: leaf for leaf in _LEAVES}
_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
_DETAILS_KEY = "grpc-status-details-bin"


def from_code(number: int, message: str, reason: str = "", field: str = "") -> OctavoError:
    """The error of a google.rpc.Code with its message, its reason and the request's field that was wrong."""
    leaf = _BY_NUMBER.get(number)
    if leaf is None:
        name = _NAMES.get(number, str(number))
        return CallFailed(f"{name}: {_one_line(message)}", reason=reason or None, field=field)
    return leaf(_one_line(message), reason=reason or None, field=field)


_ERRNO = re.compile(r" \(\d+\)$")
"""Which of gRPC's ways to connect tells the number too changes from call to call."""


def from_call(error: grpc.RpcError, target: str = "") -> OctavoError:
    """The typed error of a failed call, sync or async.

    A failure without the service's own details comes from the transport, and then names the target.
    """
    code: grpc.StatusCode = error.code()
    message: str = error.details() or ""
    status = _status_details(error)
    if status is None:
        return _from_transport(code, message, target)
    result = from_code(code.value[0], message or status.message)
    for detail in status.details:
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            result.reason, result.field = str(info.reason), str(info.metadata.get("field", ""))
        elif detail.Unpack(retry):
            result.retry_after = retry.retry_delay.ToNanoseconds() / 1e9
    return result


def _from_transport(code: grpc.StatusCode, message: str, target: str) -> OctavoError:
    if code is grpc.StatusCode.UNAVAILABLE:
        why = _ERRNO.sub("", _one_line(message).rpartition(": ")[2])
        return ConnectionFailed(
            f"no answer from {target or 'the server'} ({why}); is `octavo serve` running?"
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Unimplemented(
            f"{target or 'the server'} is no Octavo scheduler, or an older one: {_one_line(message)}"
        )
    return from_code(code.value[0], message)


def _status_details(error: grpc.RpcError) -> status_pb2.Status | None:
    """The google.rpc.Status in the trailing metadata, or None when there is none or it is broken."""
    pairs: Any = error.trailing_metadata() or ()
    for key, value in pairs:
        if key == _DETAILS_KEY:
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None
    return None


def _one_line(text: str) -> str:
    return " ".join(text.split())

"""The one error tree, and how each leaf looks on the wire.

    OctavoError
    |-- InvalidArgument     INVALID_ARGUMENT     a field is out of its bounds
    |-- Unimplemented       UNIMPLEMENTED        a method or field that the service does not have
    |-- FailedPrecondition  FAILED_PRECONDITION  EXCEEDS_KV_POOL, NO_CHAT_TEMPLATE, MODEL_MISMATCH, ...
    |-- AlreadyExists       ALREADY_EXISTS       the request id is live
    |-- NotFound            NOT_FOUND
    |-- ResourceExhausted   RESOURCE_EXHAUSTED   QUEUE_FULL, STREAM_BACKLOG
    |-- Unavailable         UNAVAILABLE          DRAINING, WORKER_LOST (carries RetryInfo)
    |-- StaleEpoch          ABORTED              STALE_EPOCH
    |-- DeadlineExceeded    DEADLINE_EXCEEDED    QUEUE_TIMEOUT
    `-- Internal            INTERNAL             our fault; the text never holds an exception's

Owns names, statuses and reasons; knows no service. Invariant: every leaf has one status and a
machine-readable reason.
"""

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

ERROR_DOMAIN = "octavo"


class OctavoError(Exception):
    """A refusal or failure with a status, a reason and, where it helps, the field's name and a retry delay
    in seconds.
    """

    status = grpc.StatusCode.INTERNAL
    default_reason = "INTERNAL"

    def __init__(
        self, message: str, *, reason: str | None = None, field: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.field = field
        self.retry_after = retry_after


class InvalidArgument(OctavoError):
    status = grpc.StatusCode.INVALID_ARGUMENT
    default_reason = "INVALID_FIELD"


class Unimplemented(OctavoError):
    status = grpc.StatusCode.UNIMPLEMENTED
    default_reason = "UNIMPLEMENTED_FIELD"


class FailedPrecondition(OctavoError):
    status = grpc.StatusCode.FAILED_PRECONDITION
    default_reason = "FAILED_PRECONDITION"


class AlreadyExists(OctavoError):
    status = grpc.StatusCode.ALREADY_EXISTS
    default_reason = "REQUEST_ID_LIVE"


class NotFound(OctavoError):
    status = grpc.StatusCode.NOT_FOUND
    default_reason = "NOT_FOUND"


class ResourceExhausted(OctavoError):
    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    default_reason = "QUEUE_FULL"


class Unavailable(OctavoError):
    status = grpc.StatusCode.UNAVAILABLE
    default_reason = "WORKER_LOST"


class StaleEpoch(OctavoError):
    status = grpc.StatusCode.ABORTED
    default_reason = "STALE_EPOCH"


class DeadlineExceeded(OctavoError):
    status = grpc.StatusCode.DEADLINE_EXCEEDED
    default_reason = "QUEUE_TIMEOUT"


class Internal(OctavoError):
    pass


def to_status(error: OctavoError) -> status_pb2.Status:
    """The google.rpc.Status of an error: ErrorInfo always, RetryInfo when it has a delay."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN)
    if error.field:
        info.metadata["field"] = error.field
    details = [_packed(info)]
    if error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after * 1e9))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status_pb2.Status(code=error.status.value[0], message=error.message, details=details)


def reason_of(error: grpc.RpcError) -> str:
    """The ErrorInfo reason that a failed call carries, or an empty string."""
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return str(info.reason)
    return ""


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed

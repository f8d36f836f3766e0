"""HTTP errors in OpenAI's shape, and what each error of the project's tree becomes.

Owns the mapping from gRPC status and reason to HTTP status, type, code and parameter; knows no endpoint.
Invariant: every refusal names its parameter where there is one, and a body never holds an exception's text.
"""

import math
import re
from collections.abc import Mapping
from http import HTTPStatus

import grpc
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from octavo.errors import OctavoError

INVALID, AUTHENTICATION, RATE, SERVER = (
    "invalid_request_error",
    "authentication_error",
    "rate_limit_error",
    "server_error",
)
_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.ABORTED: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}
_LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
"""Statuses that always say when to try again."""
_CODES = {"EXCEEDS_MODEL_LEN": "context_length_exceeded"}
_WHOLE = {
    "queue_timeout.seconds": "queue_timeout",
    "queue_timeout.nanos": "queue_timeout",
    "response_format.regex": "structured_outputs.regex",
    "response_format.ebnf": "structured_outputs.grammar",
}
"""Fields whose path over HTTP is another altogether."""
_GROUPS = ("sampling.", "stopping.", "output.", "chat.")
_PATHS = re.compile(
    r"\b(?:sampling|stopping|output)\.[a-z_]+|\bchat\.(?:messages|tools_json|template_kwargs_json)"
    r"|\bresponse_format\.(?:regex|ebnf)\b|\bqueue_timeout\.(?:seconds|nanos)\b"
)
"""Fields named inside a message."""
_NAMES = {
    "request_id": "X-Request-Id",
    "text": "prompt",
    "token_ids": "prompt",
    "chat": "messages",
    "tools_json": "tools",
    "template_kwargs_json": "chat_template_kwargs",
}


class ErrorObject(TypedDict):
    """The error of an answer, in OpenAI's shape."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """The body of every answer that is not a success."""

    error: ErrorObject


class ApiError(Exception):
    """An answer other than the one asked for."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = int(status)
        self.body = ErrorBody(error=ErrorObject(message=message, type=kind, param=param, code=code))
        self.headers = dict(headers or {})


def refused(param: str, message: str, code: str | None = None) -> ApiError:
    """400 for a parameter: `param: message`."""
    return ApiError(HTTPStatus.BAD_REQUEST, f"{param}: {message}", param=param, code=code)


def from_octavo(error: OctavoError, names: Mapping[str, str] | None = None) -> ApiError:
    """The HTTP error of a refusal or failure behind the gateway.

    names: further parameter names of an endpoint, by the field's name without its group, or its whole path.
    """
    status = _STATUSES.get(error.status, HTTPStatus.INTERNAL_SERVER_ERROR)
    param = _param(error.field, names or {}) if error.field else None
    message = error.message
    if param is not None and message.startswith(error.field):
        message = param + _over_http(message[len(error.field) :], names or {})
    else:
        message = _over_http(message, names or {})
    headers = {}
    if error.retry_after is not None or status in _LATER:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after or 0)))
    code = _CODES.get(error.reason, error.reason.lower())
    return ApiError(status, message, kind=_kind(status), param=param, code=code, headers=headers)


def _over_http(message: str, names: Mapping[str, str]) -> str:
    """A message with the paths of fields in it as clients of HTTP know them."""
    return _PATHS.sub(lambda path: _param(path.group(), names), message)


def _kind(status: HTTPStatus) -> str:
    if status is HTTPStatus.TOO_MANY_REQUESTS:
        return RATE
    return SERVER if status >= HTTPStatus.INTERNAL_SERVER_ERROR else INVALID


def _param(field: str, names: Mapping[str, str]) -> str:
    """The HTTP name of a field's path: `stopping.stop[0]` is `stop[0]`, `text` is `prompt`."""
    if field in names or field in _WHOLE:
        return names.get(field) or _WHOLE[field]
    for group in _GROUPS:
        if field.startswith(group):
            field = field.removeprefix(group)
            break
    head = field
    for mark in "[.":
        head = head.partition(mark)[0]
    return names.get(head, _NAMES.get(head, head)) + field[len(head) :].replace(
        "tool_calls_json", "tool_calls"
    )

"""JSON lines of requests in, JSON lines of answers out.

Owns the shape of both; knows no file and no server. Invariant: a line that is refused is refused by itself,
and the error names the field.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from octavo_client.constraints import CONSTRAINTS, constraint_of
from octavo_client.errors import InvalidArgument, OctavoError
from octavo_client.types import (
    Delta,
    Finished,
    GenerateOptions,
    PositionLogprobs,
    Request,
    TokenLogprob,
)

_OPTIONS = frozenset(GenerateOptions.__dataclass_fields__)
_PROMPTS = ("prompt", "messages", "token_ids")


def parse_request(line: str, defaults: GenerateOptions, request_id: str) -> Request:
    """The request of one line: a JSON string is a prompt; an object has prompt, messages or token_ids,
    perhaps request_id, any fields of GenerateOptions, and a constraint as over HTTP. Raises
    InvalidArgument.
    """
    try:
        line.encode()
        value = json.loads(line)
    except UnicodeEncodeError:
        raise InvalidArgument("not UTF-8", field="line") from None
    except RecursionError:
        raise InvalidArgument("nested too deep", field="line") from None
    except ValueError as error:
        raise InvalidArgument(f"not JSON: {error}", field="line") from None
    if isinstance(value, str):
        return Request(prompt=value, options=defaults, request_id=request_id)
    if not isinstance(value, dict):
        raise InvalidArgument(f"expected an object or a string, got {type(value).__name__}", field="line")
    unknown = sorted(set(value) - _OPTIONS - set(_PROMPTS) - {"request_id", *CONSTRAINTS})
    if unknown:
        raise InvalidArgument(f"unknown field {unknown[0]!r}", field=unknown[0])
    prompts: dict[str, Any] = {name: _checked_prompt(name, value[name]) for name in _PROMPTS if name in value}
    given = {name: value[name] for name in _OPTIONS & set(value)}
    given |= constraint_of({name: value[name] for name in CONSTRAINTS if value.get(name) is not None}, given)
    if "logit_bias" in given:
        given["logit_bias"] = _bias(given["logit_bias"])
    for name in ("stop", "stop_token_ids"):
        if name in given and not isinstance(given[name], list):
            raise InvalidArgument(f"{name}: expected a list", field=name)
    own_id = value.get("request_id", request_id)
    if not isinstance(own_id, str):
        raise InvalidArgument("request_id: expected a string", field="request_id")
    options = dataclasses.replace(defaults, **given)
    return Request(**prompts, options=options, request_id=own_id or request_id)


def _checked_prompt(name: str, value: object) -> object:
    if name == "prompt" and not isinstance(value, str):
        raise InvalidArgument("prompt: expected a string", field="prompt")
    if name == "messages" and not (isinstance(value, list) and all(isinstance(turn, dict) for turn in value)):
        raise InvalidArgument("messages: expected a list of objects with role and content", field="messages")
    if name == "token_ids" and not isinstance(value, list):
        raise InvalidArgument("token_ids: expected a list of integers", field="token_ids")
    return value


def _bias(value: object) -> Mapping[int, float]:
    """JSON has only text keys; token ids are integers."""
    if not isinstance(value, dict):
        raise InvalidArgument("logit_bias: expected an object of token id to number", field="logit_bias")
    for key in value:
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise InvalidArgument(f"logit_bias: {key!r:.60} is no token id", field="logit_bias")
    return {int(key): bias for key, bias in value.items()}


class Answer:
    """What one request has answered so far, a part for each of its sequences."""

    def __init__(self, line: int) -> None:
        self.line = line
        self._texts: dict[int, list[str]] = {}
        self._token_ids: dict[int, list[int]] = {}
        self._logprobs: dict[int, list[dict[str, object]]] = {}

    def add(self, delta: Delta) -> None:
        self._texts.setdefault(delta.index, []).append(delta.text)
        self._token_ids.setdefault(delta.index, []).extend(delta.token_ids)
        if delta.logprobs:
            self._logprobs.setdefault(delta.index, []).extend(map(_position, delta.logprobs))

    def finished(self, request_id: str, event: Finished, with_token_ids: bool) -> dict[str, object]:
        """The output object of the sequence that ended."""
        out = self._said(request_id, event.index, with_token_ids)
        out |= {"finish_reason": event.reason.value, "usage": dataclasses.asdict(event.usage)}
        if event.stop is not None:
            out["stop"] = event.stop
        if event.stop_token_id is not None:
            out["stop_token_id"] = event.stop_token_id
        if event.error_reason:
            out["error_reason"] = event.error_reason
        self._forget(event.index)
        return out

    def failed(self, request_id: str, error: OctavoError, with_token_ids: bool) -> list[dict[str, object]]:
        """The output objects of a request that failed: one for each of its sequences that had begun and not
        ended, with what had come, or a single one where none had.
        """
        why = _failure(self.line, request_id, error)
        said = [self._said(request_id, index, with_token_ids) | why for index in sorted(self._texts)]
        return said or [why]

    def _said(self, request_id: str, index: int, with_token_ids: bool) -> dict[str, object]:
        text = "".join(self._texts.get(index, ()))
        out: dict[str, object] = {"line": self.line, "request_id": request_id, "index": index, "text": text}
        if with_token_ids:
            out["token_ids"] = self._token_ids.get(index, [])
        if index in self._logprobs:
            out["logprobs"] = self._logprobs[index]
        return out

    def _forget(self, index: int) -> None:
        for parts in (self._texts, self._token_ids, self._logprobs):
            parts.pop(index, None)


def _position(logprobs: PositionLogprobs) -> dict[str, object]:
    """Of one position; the bytes of a token as text, U+FFFD where they are a part of a character."""
    tokens = [logprobs.sampled, *logprobs.top]
    sampled, *top = (_token(token) if token is not None else None for token in tokens)
    return {"sampled": sampled, "top": top}


def _token(token: TokenLogprob) -> dict[str, object]:
    text = token.token.decode(errors="replace")
    return {"token_id": token.token_id, "token": text, "logprob": token.logprob}


def _failure(line: int, request_id: str, error: OctavoError) -> dict[str, object]:
    """The output object of a request that was refused or failed."""
    said: dict[str, object] = {"status": error.status.name, "reason": error.reason, "message": error.message}
    if error.field:
        said["field"] = error.field
    return {"line": line, "request_id": request_id, "error": said}

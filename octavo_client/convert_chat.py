"""From the turns of a chat to its protobuf message.

Owns the spellings of a turn: ChatMessage, or OpenAI's mapping with text or text parts; knows no template.
Invariant: what the message cannot carry is refused by name, nothing is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.v1 import inference_pb2 as pb
from octavo_client.errors import InvalidArgument
from octavo_client.types import ChatMessage, Message

_KEYS = frozenset(ChatMessage.__dataclass_fields__)


def to_chat(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> pb.Chat:
    """The message of a chat. Raises InvalidArgument naming the turn and its key."""
    chat = pb.Chat()
    for position, turn in enumerate(messages):
        _fill(chat.messages.add(), turn, f"messages[{position}]")
    if tools is not None:
        chat.tools_json = _array(tools, "tools")
    if template_kwargs is not None:
        chat.template_kwargs_json = _object(template_kwargs, "chat_template_kwargs")
    return chat


def _fill(added: pb.ChatMessage, turn: Message, field: str) -> None:
    given = vars(turn) if isinstance(turn, ChatMessage) else turn
    unknown = sorted(set(given) - _KEYS)
    if unknown:
        raise InvalidArgument(
            f"{field}.{unknown[0]}: no such key of a message", field=f"{field}.{unknown[0]}"
        )
    for key in ("role", "tool_call_id", "name", "reasoning_content"):
        value = given.get(key)
        if value is not None and value != "":
            _set(added, key, value, field)
    content = given.get("content")
    if isinstance(content, str):
        _set(added, "content", content, field)
    elif content is not None:
        added.content_parts.extend(_parts(content, f"{field}.content"))
    if given.get("tool_calls") is not None and given["tool_calls"] not in ((), []):
        added.tool_calls_json = _array(given["tool_calls"], f"{field}.tool_calls")
    if content is None and "role" in given and not added.tool_calls_json:
        raise InvalidArgument(f"{field}.content: is missing", field=f"{field}.content")


def _parts(parts: object, field: str) -> list[str]:
    """Texts of parts: strings, or OpenAI's objects of type text. An empty list is refused."""
    if not isinstance(parts, Sequence) or isinstance(parts, bytes) or not parts:
        raise InvalidArgument(f"{field}: {type(parts).__name__} is no text and no list of parts", field=field)
    texts = []
    for place, part in enumerate(parts):
        where = f"{field}[{place}]"
        if isinstance(part, Mapping):
            if part.get("type") != "text" or set(part) != {"type", "text"}:
                raise InvalidArgument(f"{where}: only parts of type text are taken", field=where)
            part = part["text"]
        if not isinstance(part, str):
            raise InvalidArgument(f"{where}: {type(part).__name__} is no text", field=where)
        texts.append(_text(part, where))
    return texts


def _set(added: pb.ChatMessage, key: str, value: object, field: str) -> None:
    where = f"{field}.{key}"
    if not isinstance(value, str):
        raise InvalidArgument(f"{where}: {type(value).__name__} is no text", field=where)
    setattr(added, key, _text(value, where))


def _text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{where}: holds half of a surrogate pair", field=where) from None
    return value


def _array(value: object, field: str) -> str:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidArgument(f"{field}: {type(value).__name__} is no list", field=field)
    return _json(list(value), field)


def _object(value: object, field: str) -> str:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{field}: {type(value).__name__} is no object", field=field)
    return _json(dict(value), field)


def _json(value: object, field: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidArgument(f"{field}: cannot be written as JSON", field=field) from None

"""Checks on chats: messages, tool calls, tools and template variables.

Owns the bounds of a Chat message and the reading of its JSON fields; does not know templates. Invariant: what
passes is plain JSON data of bounded size, and a key that the client left out is not there.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from octavo.v1 import inference_pb2 as pb
from scheduler_svc.limits.fields import at_most, flag, refuse
from scheduler_svc.limits.values import ChatPrompt, Limits

_OURS = ("messages", "tools", "add_generation_prompt")
_TEXTS = ("content", "tool_calls_json", "tool_call_id", "name", "reasoning_content")


def chat_prompt(chat: pb.Chat, limits: Limits) -> ChatPrompt:
    """The chat as a template sees it. Raises InvalidArgument naming the field."""
    if not chat.messages:
        raise refuse("chat.messages", "is empty", "EMPTY_PROMPT")
    at_most("chat.messages", len(chat.messages), limits.chat_messages, "messages")
    size = sum(map(_size, chat.messages))
    at_most("chat.messages", size, limits.prompt_bytes, "bytes of content")
    for field in ("tools_json", "template_kwargs_json"):
        at_most(f"chat.{field}", utf8_len(getattr(chat, field)), limits.prompt_bytes, "bytes")
    return ChatPrompt(
        tuple(_message(f"chat.messages[{place}]", turn, limits) for place, turn in enumerate(chat.messages)),
        flag(chat, "add_generation_prompt", default=True),
        _tools(chat, limits),
        _variables(chat),
    )


def utf8_len(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _size(turn: pb.ChatMessage) -> int:
    return sum(utf8_len(getattr(turn, name)) for name in _TEXTS) + sum(map(utf8_len, turn.content_parts))


def _message(field: str, turn: pb.ChatMessage, limits: Limits) -> Mapping[str, Any]:
    if not turn.role:
        raise refuse(f"{field}.role", "is empty")
    at_most(f"{field}.role", len(turn.role), limits.chat_role, "characters")
    message: dict[str, Any] = {"role": turn.role}
    if turn.content_parts:
        if turn.content:
            raise refuse(f"{field}.content_parts", "is given beside content")
        at_most(f"{field}.content_parts", len(turn.content_parts), limits.chat_messages, "parts")
        message["content"] = [{"type": "text", "text": text} for text in turn.content_parts]
    elif turn.HasField("content") or not turn.tool_calls_json:
        message["content"] = turn.content
    if turn.tool_calls_json:
        message["tool_calls"] = _tool_calls(f"{field}.tool_calls_json", turn.tool_calls_json, limits)
    for name in ("tool_call_id", "name", "reasoning_content"):
        if getattr(turn, name):
            message[name] = getattr(turn, name)
    return message


def _tool_calls(field: str, text: str, limits: Limits) -> list[Any]:
    """The calls, with arguments as objects: templates write them as JSON themselves."""
    calls = _array(field, text, limits)
    for place, call in enumerate(calls):
        if not isinstance(call.get("id", ""), str):
            raise refuse(f"{field}[{place}].id", "is not a text")
        where = f"{field}[{place}].function"
        function = _function(where, call)
        if isinstance(function.get("arguments"), str):
            function["arguments"] = _read(f"{where}.arguments", function["arguments"] or "{}")
        _object(f"{where}.arguments", function.get("arguments", {}))
    return calls


def _tools(chat: pb.Chat, limits: Limits) -> list[Any] | None:
    if not chat.tools_json:
        return None
    tools = _array("chat.tools_json", chat.tools_json, limits)
    for place, tool in enumerate(tools):
        where = f"chat.tools_json[{place}].function"
        function = _function(where, tool)
        _object(f"{where}.parameters", function.get("parameters") or {})
        if not isinstance(function.get("description") or "", str):
            raise refuse(f"{where}.description", "is not a text")
    return tools or None


def _function(where: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The function of a tool or of a call."""
    if entry.get("type", "function") != "function":
        raise refuse(where.removesuffix("function") + "type", "is not function")
    function = entry.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise refuse(where, "is not an object with a name")
    return function


def _variables(chat: pb.Chat) -> Mapping[str, Any]:
    if not chat.template_kwargs_json:
        return {}
    field = "chat.template_kwargs_json"
    variables = _object(field, _read(field, chat.template_kwargs_json))
    for name in _OURS:
        if name in variables:
            raise refuse(f"{field}.{name}", "is a field of its own")
    return variables


def _array(field: str, text: str, limits: Limits) -> list[Any]:
    """A JSON array of objects, of at most chat_tools."""
    value = _read(field, text)
    if not isinstance(value, list):
        raise refuse(field, "is not a JSON array")
    at_most(field, len(value), limits.chat_tools, "entries")
    for place, entry in enumerate(value):
        _object(f"{field}[{place}]", entry)
    return value


def _object(field: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse(field, "is not a JSON object")
    return value


def _read(field: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise refuse(field, "is nested too deep") from None
    except ValueError as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise refuse(field, f"is not valid JSON: {why}") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")

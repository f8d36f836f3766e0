"""A20: chats with tools, calls and parts; a refusal names the field and never shows what was said."""

from typing import Any

import pytest

from octavo.errors import InvalidArgument
from octavo.v1 import inference_pb2 as pb
from scheduler_svc.limits import Limits
from scheduler_svc.limits.chat import chat_prompt

LIMITS = Limits(prompt_bytes=200, chat_tools=2, chat_messages=3)
CALL = '[{"id": "c", "function": {"name": "f", "arguments": "%s"}}]'


def chat(turn: dict[str, Any], **fields: Any) -> pb.Chat:
    return pb.Chat(messages=[{"role": "user", **turn}], **fields)  # type: ignore[list-item]


def test_a_turn_has_the_keys_that_were_given_and_no_others() -> None:
    made = chat_prompt(
        pb.Chat(
            messages=[
                pb.ChatMessage(role="user", content_parts=["a", "b"]),
                pb.ChatMessage(role="assistant", tool_calls_json=CALL % r"{\"x\": [1, \"é\"]}"),
                pb.ChatMessage(role="tool", content="", tool_call_id="c", name="f"),
            ],
            tools_json='[{"function": {"name": "f"}}]',
            template_kwargs_json='{"thinking": true}',
        ),
        LIMITS,
    )
    assert made.messages == (
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"x": [1, "é"]}}}],
        },
        {"role": "tool", "content": "", "tool_call_id": "c", "name": "f"},
    )
    assert made.tools == [{"function": {"name": "f"}}]
    assert made.variables == {"thinking": True}


def test_no_tools_are_none() -> None:
    assert chat_prompt(chat({"content": "a"}, tools_json="[]"), LIMITS).tools is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (chat({"role": ""}), "chat.messages[0].role: is empty"),
        (chat({"content": "x" * 199, "name": "é"}), "chat.messages: 201 bytes of content, the limit is 200"),
        (chat({"content_parts": ["x" * 201]}), "chat.messages: 201 bytes of content, the limit is 200"),
        (
            chat({"content": "a", "content_parts": ["b"]}),
            "chat.messages[0].content_parts: is given beside content",
        ),
        (
            chat({"content_parts": ["a"] * 4}),
            "chat.messages[0].content_parts: 4 parts, the limit is 3",
        ),
        (
            chat({"tool_calls_json": "{"}),
            "chat.messages[0].tool_calls_json: is not valid JSON: "
            "Expecting property name enclosed in double quotes",
        ),
        (chat({"tool_calls_json": "{}"}), "chat.messages[0].tool_calls_json: is not a JSON array"),
        (chat({"tool_calls_json": "[5]"}), "chat.messages[0].tool_calls_json[0]: is not a JSON object"),
        (
            chat({"tool_calls_json": "[{}]"}),
            "chat.messages[0].tool_calls_json[0].function: is not an object with a name",
        ),
        (
            chat({"tool_calls_json": '[{"function": {"name": "f", "arguments": [1]}}]'}),
            "chat.messages[0].tool_calls_json[0].function.arguments: is not a JSON object",
        ),
        (
            chat({"tool_calls_json": '[{"id": 5}]'}),
            "chat.messages[0].tool_calls_json[0].id: is not a text",
        ),
        (
            chat({}, tools_json='[{"type": "web_search"}]'),
            "chat.tools_json[0].type: is not function",
        ),
        (
            chat({}, tools_json='[{"function": {"name": "f", "parameters": "x"}}]'),
            "chat.tools_json[0].function.parameters: is not a JSON object",
        ),
        (
            chat({}, tools_json='[{"function": {"name": "f", "description": 5}}]'),
            "chat.tools_json[0].function.description: is not a text",
        ),
        (
            chat({"tool_calls_json": CALL % "[1]"}),
            "chat.messages[0].tool_calls_json[0].function.arguments: is not a JSON object",
        ),
        (
            chat({"tool_calls_json": CALL % "{secret"}),
            "chat.messages[0].tool_calls_json[0].function.arguments: is not valid JSON: "
            "Expecting property name enclosed in double quotes",
        ),
        (chat({}, tools_json="[{},{},{}]"), "chat.tools_json: 3 entries, the limit is 2"),
        (
            chat({}, tools_json='[{"function": {}}]'),
            "chat.tools_json[0].function: is not an object with a name",
        ),
        (chat({}, tools_json="x" * 201), "chat.tools_json: 201 bytes, the limit is 200"),
        (chat({}, tools_json="[NaN]"), "chat.tools_json: is not valid JSON: NaN is no number"),
        (chat({}, template_kwargs_json="[]"), "chat.template_kwargs_json: is not a JSON object"),
        (
            chat({}, template_kwargs_json='{"tools": 1}'),
            "chat.template_kwargs_json.tools: is a field of its own",
        ),
    ],
)  # fmt: skip
def test_a20_a_bad_chat_is_refused_by_field(given: pb.Chat, message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        chat_prompt(given, LIMITS)
    assert refused.value.message == message
    assert refused.value.field == message.partition(": ")[0]


def test_a20_json_of_any_depth_is_refused_and_no_crash() -> None:
    deep = "[" * 100_000
    with pytest.raises(InvalidArgument, match=r"nested too deep|not valid JSON"):
        chat_prompt(chat({}, tools_json=deep), Limits())

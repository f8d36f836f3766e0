"""Real chat templates: the text, or the template's own error, is what transformers gives.

Each chat goes the way of a client's: OpenAI's messages and tools, the client's message, the service's checks.
"""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import InvalidArgument
from octavo_client.convert_chat import to_chat
from scheduler_svc.limits import ChatPrompt, Limits
from scheduler_svc.limits.chat import chat_prompt
from scheduler_svc.text import TextModel, load_text_model
from tests.fixtures.small_tokenizers import byte_level, write_folder

TEMPLATES = sorted((Path(__file__).parents[2] / "data" / "chat_templates").glob("*.jinja"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
Chat = dict[str, Any]


def turns(*pairs: tuple[str, str]) -> list[Chat]:
    return [{"role": role, "content": content} for role, content in pairs]


def call(name: str, arguments: str, call_id: str = "call_0123456789") -> Chat:
    """A tool call as OpenAI's clients send it back: the arguments are a string of JSON."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place — 天気",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A town, as 'Köln' or <Paris>"},
                "days": {"type": "integer", "description": "How far ahead", "enum": [1, 2, 3]},
                "units": {"type": "string", "description": "metric or not"},
            },
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}
NOW: Chat = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "The time",
        "parameters": {"type": "object", "properties": {}},
    },
}
# One of the templates never comes back from a type that is a list with "null" in it.
NULLABLE = copy.deepcopy(NOW)
NULLABLE["function"]["parameters"]["properties"] = {"zone": {"type": ["string", "null"], "description": "-"}}
PLAIN = {
    "one turn": turns(("user", "What is a block?")),
    "system": turns(("system", "Be brief."), ("user", "Hi  there\n")),
    "turns": turns(
        ("user", "1 + 1?"),
        ("assistant", "<think>\neasy\n</think>\n\n2"),
        ("user", "And  2 + 2?"),
        ("assistant", "4"),
        ("user", "東京 👩‍👩‍👧"),
    ),
    "ends with the assistant": turns(("user", "Say a"), ("assistant", "a")),
    "same role twice": turns(("user", "a"), ("user", "b")),
    "system in the middle": turns(
        ("user", "a"), ("system", "b"), ("assistant", "c"), ("system", "d"), ("user", "e")
    ),
    "assistant first": turns(("assistant", "a"), ("user", "b")),
    "developer": turns(("developer", "a"), ("user", "b"), ("function", "c"), ("user", "d")),
    "braces": turns(("user", "{{ 7 * 7 }} {% raise %} <b>&amp;</b> \"'"), ("assistant", ""), ("user", " ")),
}
CALLED = [
    *turns(("system", "Be brief."), ("user", "Weather in Köln?")),
    {"role": "assistant", "tool_calls": [call("get_weather", '{"place": "Köln", "days": 2, "units": null}')]},
    {"role": "tool", "tool_call_id": "call_0123456789", "content": '{"celsius": 9.5}'},
]
# name: messages, tools, template variables
CASES: dict[str, tuple[list[Chat], list[Chat] | None, Chat]] = {
    **{name: (messages, None, {}) for name, messages in PLAIN.items()},
    "tools are offered": (turns(("user", "Weather?")), [WEATHER], {}),
    "a type that is a list": (turns(("user", "Time?")), [NULLABLE], {}),
    "two tools and a system message": (
        turns(("system", "Be brief."), ("user", "Weather and time?")), [WEATHER, NOW], {}),
    "a call and its answer": (CALLED, [WEATHER], {}),
    "the talk goes on after a call": (
        [*CALLED, *turns(("assistant", "9.5 degrees."), ("user", "And now?"))], [WEATHER, NOW], {}),
    "a call beside a text": (
        [
            *turns(("user", "Time?")),
            {"role": "assistant", "content": "Let me look.", "tool_calls": [call("now", "{}")]},
            {"role": "tool", "tool_call_id": "call_0123456789", "name": "now", "content": "noon"},
        ],
        [NOW],
        {},
    ),
    "two calls at once": (
        [
            *turns(("user", "Both?")),
            {
                "role": "assistant",
                "tool_calls": [call("now", ""), call("get_weather", '{"place": "a\\"b"}', "call_9876543210")],
            },
            {"role": "tool", "tool_call_id": "call_0123456789", "content": "noon"},
            {"role": "tool", "tool_call_id": "call_9876543210", "content": "rain"},
        ],
        [WEATHER, NOW],
        {},
    ),
    "calls without tools": (CALLED, None, {}),
    "a short call id": (
        [*turns(("user", "a")), {"role": "assistant", "tool_calls": [call("now", "{}", "1")]}], [NOW], {}),
    "reasoning": (
        [
            *turns(("user", "1 + 1?")),
            {"role": "assistant", "content": "2", "reasoning_content": "easy"},
            *turns(("user", "2 + 2?")),
            {"role": "assistant", "content": "4", "reasoning_content": "easy too"},
        ],
        None,
        {},
    ),
    "no thinking": (turns(("user", "Hi")), None, {"enable_thinking": False, "thinking": False}),
    "thinking": (turns(("user", "Hi")), None, {"thinking": True, "date_string": "1 Jan 2026"}),
}  # fmt: skip


@pytest.fixture(scope="module", params=TEMPLATES, ids=lambda path: path.stem)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TextModel, Any]]:
    """Our model and transformers' tokenizer over the same folder."""
    from transformers import PreTrainedTokenizerFast

    template = request.param.read_text(encoding="utf-8")
    folder = write_folder(
        tmp_path_factory.mktemp("chat"), byte_level(), tokenizer_config={**SPECIAL, "chat_template": template}
    )
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=template, **SPECIAL
    )
    ours = load_text_model(folder)
    yield ours, theirs
    ours.close()


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_template_renders_or_refuses_as_in_transformers(
    pair: tuple[TextModel, Any], name: str, add_generation_prompt: bool
) -> None:
    ours, theirs = pair
    messages, tools, variables = CASES[name]
    wanted = reference(theirs, messages, tools, variables, add_generation_prompt)
    chat = checked(messages, tools, variables, add_generation_prompt)
    made = rendered(ours, chat)
    if made != wanted:  # some templates write today's date, and a day may have begun between the two
        wanted = reference(theirs, messages, tools, variables, add_generation_prompt)
    assert made == wanted
    if "text" in wanted and (not tools or "tools" in theirs.chat_template):
        ids = ours.encode_chat(chat)
        assert ids.tolist() == theirs(wanted["text"], add_special_tokens=False)["input_ids"]
    elif "text" in wanted:
        with pytest.raises(
            InvalidArgument, match=r"chat\.tools_json: .* chat template takes no tools"
        ) as told:
            ours.encode_chat(chat)
        assert told.value.reason == "NO_TOOLS_IN_TEMPLATE"


def test_every_template_that_knows_tools_shows_them(pair: tuple[TextModel, Any]) -> None:
    """So that the equality above is not that of texts without tools."""
    ours, theirs = pair
    assert len(TEMPLATES) == 13
    if "tools" in theirs.chat_template:
        text = rendered(ours, checked(*CASES["tools are offered"], True))["text"]
        assert "get_weather" in text
        assert "How far ahead" in text


def test_parts_reach_a_template_that_takes_them_and_are_joined_for_one_that_does_not(
    pair: tuple[TextModel, Any],
) -> None:
    ours, theirs = pair
    parts = [{"type": "text", "text": text} for text in ("one", "two")]
    chat = checked([{"role": "user", "content": parts}], None, {}, True)
    joined = checked(turns(("user", "one\ntwo")), None, {}, True)
    takes_parts = "for block in message['content']" in theirs.chat_template or any(
        f"for {name} in message[{quote}content{quote}]" in theirs.chat_template
        for name in ("item", "content", "c", "chunk")
        for quote in "'\""
    )
    if takes_parts:
        whole = reference(theirs, [{"role": "user", "content": parts}], None, {}, True)
        assert rendered(ours, chat) == whole
    else:
        assert rendered(ours, chat) == rendered(ours, joined)


def checked(messages: list[Chat], tools: list[Chat] | None, variables: Chat, add: bool) -> ChatPrompt:
    """What the service makes of a client's chat."""
    message = to_chat(messages, tools, variables or None)
    message.add_generation_prompt = add
    return chat_prompt(message, Limits())


def rendered(ours: TextModel, chat: ChatPrompt) -> dict[str, str]:
    try:
        return {"text": ours.render_chat(chat)}
    except InvalidArgument as error:
        return {error.reason: error.message}


def reference(
    theirs: Any, messages: list[Chat], tools: list[Chat] | None, variables: Chat, add: bool
) -> dict[str, str]:
    """transformers' answer; its templates expect the arguments of a call as an object."""
    from jinja2 import TemplateError

    chat = copy.deepcopy(messages)
    for message in chat:
        for made in message.get("tool_calls", ()):
            made["function"]["arguments"] = json.loads(made["function"]["arguments"] or "{}")
    given = {"tokenize": False, "add_generation_prompt": add, "tools": tools, **variables}
    try:
        return {"text": theirs.apply_chat_template(chat, **given)}
    except TemplateError as error:
        return {"CHAT_TEMPLATE_REFUSED": f"chat: {error.message}"}
    except RecursionError:
        return {"CHAT_TEMPLATE_LIMIT": "chat: the chat template went over its bounds (RecursionError)"}
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        failed = f"chat: the chat template failed: {type(error).__name__}: {error}"
        return {"CHAT_TEMPLATE_REFUSED": failed}


def test_the_demo_model_s_chat_is_transformers_chat(smollm2_folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    config = json.loads((smollm2_folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(smollm2_folder / "tokenizer.json"),
        chat_template=config["chat_template"],
        bos_token=config["bos_token"],
        eos_token=config["eos_token"],
    )
    ours = load_text_model(smollm2_folder)
    for messages in PLAIN.values():
        wanted = reference(theirs, messages, None, {}, True)
        chat = checked(messages, None, {}, True)
        assert rendered(ours, chat) == wanted
        assert ours.encode_chat(chat).tolist() == theirs(wanted["text"])["input_ids"]
    ours.close()


def test_a_role_that_nobody_knows_is_refused_with_those_there_are(tmp_path: Path) -> None:
    """Such a turn would only be words of the prompt, whoever wrote them."""
    template = "{% for m in messages %}{% if m.role == 'judge' %}!{% endif %}{{ m.content }}{% endfor %}"
    text = load_text_model(write_folder(tmp_path, byte_level(), tokenizer_config={"chat_template": template}))
    known = ("system", "developer", "user", "assistant", "tool", "function", "judge")
    for role in known:
        assert text.render_chat(ChatPrompt(({"role": role, "content": "a"},)))
    chat = ChatPrompt(({"role": "user", "content": "a"}, {"role": "alien", "content": "b"}))
    with pytest.raises(InvalidArgument) as refused:
        text.encode_chat(chat)
    assert refused.value.field == "chat.messages[1].role"
    assert refused.value.message == (
        f"chat.messages[1].role: 'alien' is no role, must be one of {', '.join(known)}"
    )

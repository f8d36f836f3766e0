"""Tools and tool calls from the openai client to the model's own template."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from scheduler_svc.limits import ChatPrompt
from scheduler_svc.text import TextModel, load_text_model
from tests.architecture.sources import REPOSITORY
from tests.e2e.gateway.door import Door, door_at
from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, VOCAB, rig_at, seat_scheduler
from tests.fakes.fake_worker import FakeSettings

TEMPLATE = REPOSITORY / "tests/data/chat_templates/qwen3.jinja"
ROOMY = FakeSettings(num_blocks=1024, block_size=SMALL.block_size, vocab_size=VOCAB)
TOOL = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "The time — 今",
        "parameters": {"type": "object", "properties": {}},
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
MESSAGES: list[Any] = [
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
]
RENDERED = (
    {"role": "user", "content": "What time is it?"},
    {
        "role": "assistant",
        "tool_calls": [{**CALL, "function": {"name": "now", "arguments": {"zone": "UTC"}}}],
    },
    {"role": "tool", "content": "noon", "tool_call_id": "call_1"},
)
GREEDY: dict[str, Any] = {"model": "fake", "temperature": 0, "max_tokens": 2}


@pytest.fixture
async def door(processes: Processes, tiny_llama: Path, tmp_path: Path) -> AsyncIterator[Door]:
    """A service whose model has a template that knows tools."""
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    shutil.copy(TEMPLATE, folder / "chat_template.jinja")
    seat = seat_scheduler(processes, folder)
    text = load_text_model(folder)
    async with (
        rig_at(seat, ROOMY) as rig,
        door_at(processes.gateway(seat.process.address), rig, text) as made,
    ):
        yield made
    text.close()


def prompt_of(text: TextModel, **chat: Any) -> list[int]:
    ids: list[int] = text.encode_chat(ChatPrompt(RENDERED, **chat)).tolist()
    return ids


async def test_tools_calls_and_results_reach_the_template(door: Door) -> None:
    wanted = prompt_of(door.text, tools=[TOOL])
    tokenized = await door.post("/tokenize", {"messages": MESSAGES, "tools": [TOOL]})
    assert tokenized.json()["tokens"] == wanted
    assert "今" in door.text.decode(wanted, skip_special_tokens=False)
    for stream in (False, True):
        answer = await door.openai.chat.completions.create(
            messages=MESSAGES, tools=[TOOL], tool_choice="auto", stream=stream,  # type: ignore[list-item]
            **GREEDY, **({"stream_options": {"include_usage": True}} if stream else {}),
        )  # fmt: skip
        usage = [chunk async for chunk in answer][-1].usage if stream else answer.usage
        assert usage.prompt_tokens == len(wanted)


async def test_tool_choice_none_hides_the_tools(door: Door) -> None:
    answer = await door.openai.chat.completions.create(
        messages=MESSAGES,
        tools=[TOOL],
        tool_choice="none",
        **GREEDY,  # type: ignore[list-item]
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt_of(door.text))


async def test_template_variables_reach_the_template(door: Door) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    answer = await door.openai.chat.completions.create(messages=MESSAGES, extra_body=extra, **GREEDY)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt_of(door.text, variables={"enable_thinking": False}))
    assert answer.usage.prompt_tokens > len(prompt_of(door.text))


async def test_a_chat_may_end_without_the_header_of_an_answer(door: Door) -> None:
    body = {**GREEDY, "messages": RENDERED, "tools": [TOOL]}
    lengths = []
    for given, wanted in ((None, True), (True, True), (False, False)):
        answer = await door.post("/v1/chat/completions", {**body, "add_generation_prompt": given})
        lengths.append(answer.json()["usage"]["prompt_tokens"])
        assert lengths[-1] == len(prompt_of(door.text, tools=[TOOL], add_generation_prompt=wanted))
    assert lengths[0] == lengths[1] > lengths[2]


async def test_a20_what_is_not_served_of_tools_is_refused_by_name(door: Door) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "now"}}}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"extra_body": {"functions": []}}, "functions"),
    ]
    for given, param in cases:
        with pytest.raises(openai.BadRequestError) as refused:
            await door.openai.chat.completions.create(
                **{**GREEDY, "messages": MESSAGES, "tools": [TOOL], **given}
            )
        assert refused.value.param == param
    bad = [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "now", "arguments": "{"}}]}]
    with pytest.raises(openai.BadRequestError) as refused:
        await door.openai.chat.completions.create(messages=bad, **GREEDY)  # type: ignore[arg-type]
    assert refused.value.param == "messages[0].tool_calls[0].function.arguments"


async def test_tools_for_a_template_that_takes_none_are_refused_by_name(
    processes: Processes, tiny_llama: Path, text: TextModel
) -> None:
    seat = seat_scheduler(processes, tiny_llama)
    async with (
        rig_at(seat, ROOMY) as rig,
        door_at(processes.gateway(seat.process.address), rig, text) as door,
    ):
        for path, more in (("/v1/chat/completions", GREEDY), ("/tokenize", {})):
            answer = await door.post(path, {**more, "messages": [MESSAGES[0]], "tools": [TOOL]})
            assert answer.status_code == 400
            assert answer.json()["error"] == {
                "message": "tools: this model's chat template takes no tools",
                "type": "invalid_request_error", "param": "tools", "code": "no_tools_in_template",
            }  # fmt: skip
        hidden = {**GREEDY, "messages": [MESSAGES[0]], "tools": [TOOL], "tool_choice": "none"}
        assert (await door.post("/v1/chat/completions", hidden)).status_code == 200

"""Log-probabilities, several answers, penalties and constrained output through the HTTP door."""

from typing import Any

import openai
import pytest

from octavo.v1 import inference_pb2 as pb
from tests.e2e.gateway.door import Door
from tests.e2e.rig import prompt_of, wanted
from tests.e2e.service import request

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


async def over_grpc(door: Door, prompt: list[int], top: int) -> list[pb.PositionLogprobs]:
    message = request(prompt, 6)
    message.output.logprobs = top
    answer = await door.rig.service.inference.GenerateOnce(pb.GenerateOnceRequest(request=message))
    return list(answer.completions[0].logprobs)


def text_of(token: pb.TokenLogprob) -> str:
    return token.token.decode("utf-8", "replace")


@pytest.mark.parametrize("top", [0, 3, 20])
async def test_a15_a_completion_s_log_probabilities_are_those_of_grpc(door: Door, top: int) -> None:
    prompt = prompt_of(9)
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": top}
    told = await over_grpc(door, prompt, top)
    found = (await door.post(COMPLETIONS, body)).json()["choices"][0]["logprobs"]
    assert found["tokens"] == [text_of(position.sampled) for position in told]
    assert found["token_logprobs"] == pytest.approx([position.sampled.logprob for position in told], abs=1e-6)
    for top_of, position in zip(found["top_logprobs"], told, strict=True):
        assert set(top_of) == {text_of(token) for token in (*position.top, position.sampled)}
    assert found["text_offset"][0] == 0
    events = await door.events(COMPLETIONS, body)
    pieces = [event["choices"][0]["logprobs"] for event in events[:-1]]
    for key in found:
        assert [value for piece in pieces for value in piece[key]] == found[key]


async def test_a15_a_chat_s_log_probabilities_have_bytes_and_add_up_to_the_text(door: Door) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    answer = await door.openai.chat.completions.create(
        model="fake", messages=messages, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2,
        extra_body={"ignore_eos": True, "skip_special_tokens": False},
    )  # fmt: skip
    (choice,) = answer.choices
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert len(content) == 8
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in content)
    whole = b"".join(bytes(token.bytes or []) for token in content)
    assert whole.decode(errors="replace") == choice.message.content


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_without_asking_there_are_no_log_probabilities(door: Door, path: str) -> None:
    body: dict[str, Any] = {"max_tokens": 2}
    body |= {"prompt": "a"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "a"}]}
    assert (await door.post(path, body)).json()["choices"][0]["logprobs"] is None


async def test_a20_bounds_of_log_probabilities_name_the_parameter_of_the_path(door: Door) -> None:
    with pytest.raises(openai.BadRequestError) as completion:
        await door.openai.completions.create(model="fake", prompt="a", logprobs=21)
    assert completion.value.param == "logprobs"
    messages: Any = [{"role": "user", "content": "a"}]
    with pytest.raises(openai.BadRequestError) as chat:
        await door.openai.chat.completions.create(
            model="fake", messages=messages, logprobs=True, top_logprobs=21
        )
    assert chat.value.param == "top_logprobs"
    with pytest.raises(openai.BadRequestError) as alone:
        await door.openai.chat.completions.create(model="fake", messages=messages, top_logprobs=2)
    assert alone.value.body["message"] == "top_logprobs: is only for logprobs: true"  # type: ignore[index]


async def test_an_invalid_grammar_is_400_and_costs_nothing_else(door: Door) -> None:
    for wrong in (
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"grammar": "start: "}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no such"}}}},
        {"structured_outputs": {"regex": "a", "grammar": "b"}},
        {"structured_outputs": {}},
    ):
        answer = await door.post(COMPLETIONS, {"prompt": "a", "max_tokens": 2, **wrong})
        assert answer.status_code == 400, (wrong, answer.text)
        assert answer.json()["error"]["param"].split(".")[0] in ("response_format", "structured_outputs")
    prompt = prompt_of(6)
    body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    assert (await door.post(COMPLETIONS, body)).json()["choices"][0]["token_ids"] == wanted(prompt, 3)


async def test_a14_two_answers_to_each_prompt_are_numbered_and_counted_once(door: Door) -> None:
    prompt = prompt_of(9)
    body = {"prompt": [prompt, prompt_of(7)], "max_tokens": 4, "n": 2, "seed": 7, "ignore_eos": True}
    answer = (await door.post(COMPLETIONS, body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["choices"][0]["text"] != answer["choices"][1]["text"]
    assert answer["usage"]["prompt_tokens"] == 16
    assert answer["usage"]["completion_tokens"] == 16
    events = await door.events(COMPLETIONS, body | {"stream_options": {"include_usage": True}})
    texts = ["", "", "", ""]
    for event in events[:-2]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in answer["choices"]]
    assert events[-2]["usage"]["completion_tokens"] == 16


async def test_a14_a_chat_s_branches_each_begin_with_the_role_and_end_by_themselves(door: Door) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    given: dict[str, Any] = {"model": "fake", "messages": messages, "max_tokens": 6, "n": 3, "seed": 5}
    whole = await door.openai.chat.completions.create(**given, extra_body={"ignore_eos": True})
    stream = await door.openai.chat.completions.create(**given, stream=True, extra_body={"ignore_eos": True})
    roles, ends, texts = [], [], ["", "", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            roles += [choice.index] if choice.delta.role else []
            ends += [choice.index] if choice.finish_reason else []
            texts[choice.index] += choice.delta.content or ""
    assert sorted(roles) == sorted(ends) == [0, 1, 2]
    assert texts == [choice.message.content for choice in whole.choices]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 18

"""The real openai client against the gateway: what its users do, and what they get."""

import asyncio
from typing import Any

import openai
import pytest

from tests.e2e.gateway.door import PROMPT, Door
from tests.e2e.rig import prompt_of, wanted

MODEL = "fake"
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "seed": 0}
SPECIAL: dict[str, Any] = {"extra_body": {"ignore_eos": True, "return_token_ids": True}}


async def test_the_served_model_is_listed(door: Door) -> None:
    models = await door.openai.models.list()
    assert [model.id for model in models.data] == [MODEL]
    assert (await door.openai.models.retrieve(MODEL)).owned_by == "octavo"
    with pytest.raises(openai.NotFoundError) as unknown:
        await door.openai.models.retrieve("gpt-4")
    assert unknown.value.code == "model_not_found"


async def test_a_completion_has_the_right_tokens_and_16_of_them_by_default(door: Door) -> None:
    prompt = prompt_of(9)
    answer = await door.openai.completions.create(prompt=prompt, **GREEDY, **SPECIAL)
    (choice,) = answer.choices
    assert choice.token_ids == wanted(prompt, 16)  # type: ignore[attr-defined]
    assert choice.text == door.text.decode(wanted(prompt, 16))
    assert choice.finish_reason == "length"
    assert answer.model == MODEL
    assert answer.id.startswith("cmpl-")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        9,
        16,
        25,
    )


async def test_a_prompt_that_was_seen_before_counts_as_cached(door: Door) -> None:
    prompt = prompt_of(21)
    for cached in (0, 20):
        answer = await door.openai.completions.create(prompt=prompt, max_tokens=2, **GREEDY, **SPECIAL)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == cached


@pytest.mark.parametrize("stream", [False, True])
async def test_each_kind_of_prompt(door: Door, stream: bool) -> None:
    first, second = prompt_of(5), prompt_of(6)
    texts = [door.text.decode(prompt) for prompt in (first, second)]
    for given in ([first, second], texts, texts[0], first):
        several = given in ([first, second], texts)
        answer = await joined(door, stream, prompt=given, max_tokens=4, n=1)
        assert sorted(answer) == ([0, 1] if several else [0])
        ids = (
            [door.text.encode(text).tolist() for text in texts]
            if isinstance(given[0], str)
            else [first, second]
        )
        for index in answer:
            assert answer[index] == door.text.decode(wanted(ids[index], 4))


async def joined(door: Door, stream: bool, **given: Any) -> dict[int, str]:
    """The text of each choice."""
    answer = await door.openai.completions.create(stream=stream, **given, **GREEDY, **SPECIAL)
    if not stream:
        return {choice.index: choice.text for choice in answer.choices}
    texts: dict[int, str] = {}
    async for chunk in answer:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return texts


async def test_a_chat_and_its_stream_say_the_same(door: Door) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    whole = await door.openai.chat.completions.create(messages=messages, max_tokens=12, **GREEDY, **SPECIAL)
    message = whole.choices[0].message
    assert message.role == "assistant"
    stream = await door.openai.chat.completions.create(
        messages=messages,
        max_completion_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
        **GREEDY,
        **SPECIAL,
    )
    chunks = [chunk async for chunk in stream]
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == message.content
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert len({chunk.id for chunk in chunks}) == 1


async def test_an_answer_can_be_sent_back_as_it_came(door: Door) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hello"}]
    for _ in range(2):
        answer = await door.openai.chat.completions.create(messages=messages, max_tokens=4, **GREEDY)
        messages += [
            answer.choices[0].message,
            {"role": "user", "content": [{"type": "text", "text": "More"}]},
        ]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens > 0


async def test_a16_a_stop_string_ends_the_answer_and_is_named(door: Door) -> None:
    door.script("The quick brown fox jumps over")
    answer = await door.openai.completions.create(
        prompt=PROMPT, stop=["zzz", "own f"], max_tokens=40, **GREEDY, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].text == "The quick br"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == "own f"  # type: ignore[attr-defined]


async def test_seeds_make_answers_repeatable(door: Door) -> None:
    prompt = prompt_of(7)
    given: dict[str, Any] = {"model": MODEL, "prompt": prompt, "temperature": 1, "max_tokens": 6}
    answers = [
        (await door.openai.completions.create(seed=seed, **given, **SPECIAL)).choices[0]
        for seed in (7, 7, 8, -1)
    ]
    assert answers[0].token_ids == answers[1].token_ids == wanted(prompt, 6, 1.0, 7)  # type: ignore[attr-defined]
    assert answers[2].token_ids == wanted(prompt, 6, 1.0, 8)  # type: ignore[attr-defined]
    assert answers[3].token_ids == wanted(prompt, 6, 1.0, 2**64 - 1)  # type: ignore[attr-defined]


async def test_a20_a_refusal_names_the_parameter(door: Door) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"temperature": -1}, "temperature: -1.0 is out of [0, 100]"),
        ({"top_p": 0}, "top_p: 0.0 is out of (0, 1]"),
        ({"max_tokens": 0}, "max_tokens: 0 is out of [1, 1048576]"),
        ({"max_tokens": 99_999}, "max_tokens: 5 prompt tokens + 99999 is 100004, the model takes 2048"),
        ({"max_tokens": -1}, "max_tokens: -1 is out of [1, 1048576]"),
        ({"extra_body": {"top_k": -5}}, "top_k: -5 is out of [-1, 1048576]"),
        ({"temperature": 1e300}, "temperature: 1e+300 is out of [0, 100]"),
        ({"extra_body": {"min_tokens": -1}}, "min_tokens: -1 is out of [0, 1048576]"),
        ({"extra_body": {"priority": 1 << 31}}, "priority: 2147483648 is out of [-2147483648, 2147483647]"),
        ({"extra_body": {"queue_timeout": 1e300}}, "queue_timeout: 1e+300 is out of (0, 86400]"),
        ({"logprobs": -1}, "logprobs: -1 is out of [0, 20]"),
        ({"n": 129}, "n: 129 is out of [1, 128]"),
        ({"prompt": [999]}, "prompt[0]: token id 999 is out of [0, 383]"),
        ({"prompt": ""}, "prompt: is empty"),
        ({"stop": [""]}, "stop[0]: is empty"),
        ({"best_of": 2}, "best_of: should be 1"),
        ({"echo": True}, "echo: should be false"),
        ({"extra_body": {"temprature": 1}}, "temprature: is no parameter that is served here"),
        (
            {"seed": -(2**64)},
            "seed: -18446744073709551616 is out of [-9223372036854775808, 18446744073709551615]",
        ),
        ({"logit_bias": {"x": 1}}, "logit_bias: 'x' is no token id"),
    ]
    for given, message in cases:
        with pytest.raises(openai.BadRequestError) as refused:
            await door.openai.completions.create(**{"prompt": prompt_of(5), "model": MODEL, **given})
        assert refused.value.body["message"] == message  # type: ignore[index]
        assert refused.value.param == message.partition(": ")[0]
        assert refused.value.type == "invalid_request_error"
    assert (await door.openai.completions.create(prompt=prompt_of(5), **GREEDY)).choices


async def test_chats_refuse_what_is_not_text(door: Door) -> None:
    cases: list[tuple[Any, str]] = [
        ([{"role": "user"}], "messages[0].content"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0]",
        ),
        ([{"role": "user", "content": "a", "mood": "b"}], "messages[0].mood"),
        ([{"role": "", "content": "a"}], "messages[0].role"),
        ([{"role": "alien", "content": "a"}], "messages[0].role"),
        ([], "messages"),
    ]
    for messages, param in cases:
        with pytest.raises(openai.BadRequestError) as refused:
            await door.openai.chat.completions.create(model=MODEL, messages=messages)
        assert refused.value.param == param


async def test_100_calls_at_once_each_get_their_own(door: Door) -> None:
    prompts = [prompt_of(6, seed) for seed in range(100)]
    answers = await asyncio.gather(
        *(
            door.openai.completions.create(prompt=prompt, max_tokens=5, **GREEDY, **SPECIAL)
            for prompt in prompts
        )
    )
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.choices[0].token_ids == wanted(prompt, 5)  # type: ignore[attr-defined]

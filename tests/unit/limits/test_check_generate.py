"""A20, A19: a GenerateRequest's bounds, defaults and refusals."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from octavo.errors import InvalidArgument, OctavoError
from octavo.v1 import inference_pb2 as pb
from scheduler_svc.limits import (
    ChatPrompt,
    CheckedRequest,
    Limits,
    ModelFacts,
    TextPrompt,
    TokenPrompt,
    check_generate,
)

LIMITS = Limits(prompt_bytes=1000, prompt_tokens=50)
MODEL = ModelFacts(max_model_len=64, vocab_size=100)


def check(**fields: Any) -> CheckedRequest:
    if not {"text", "token_ids", "chat"} & fields.keys():
        fields["text"] = "hi"
    return check_generate(pb.GenerateRequest(**fields), LIMITS, MODEL)


def sampling(**fields: Any) -> Mapping[str, Any]:
    return {"sampling": fields}


def stopping(**fields: Any) -> Mapping[str, Any]:
    return {"stopping": fields}


def chat(*messages: tuple[str, str]) -> Mapping[str, Any]:
    return {"chat": {"messages": [{"role": role, "content": content} for role, content in messages]}}


INVALID = [
    ({"text": ""}, "text", "is empty"),
    ({"token_ids": {}}, "token_ids", "is empty"),
    ({"chat": {}}, "chat.messages", "is empty"),
    ({"text": "x" * 1001}, "text", "1001 bytes, the limit is 1000"),
    ({"text": "é" * 501}, "text", "1002 bytes, the limit is 1000"),
    ({"text": "x" * 10_000_000}, "text", "10000000 bytes, the limit is 1000"),
    ({"token_ids": {"ids": [1] * 51}}, "token_ids", "51 token ids, the limit is 50"),
    ({"token_ids": {"ids": [1, 2, 100]}}, "token_ids[2]", "token id 100 is out of [0, 99]"),
    ({"token_ids": {"ids": [2**32 - 1]}}, "token_ids[0]", "token id 4294967295 is out of [0, 99]"),
    (chat(*[("user", "a")] * 1025), "chat.messages", "1025 messages, the limit is 1024"),
    (chat(("user", "a"), ("", "b")), "chat.messages[1].role", "is empty"),
    (chat(("r" * 65, "a")), "chat.messages[0].role", "65 characters, the limit is 64"),
    (
        chat(("user", "x" * 600), ("user", "x" * 600)),
        "chat.messages",
        "1200 bytes of content, the limit is 1000",
    ),
    ({"request_id": "r" * 129}, "request_id", "129 characters, the limit is 128"),
    ({"request_id": "a\nb"}, "request_id", "holds a character that cannot be printed"),
    ({"cache_salt": "s" * 257}, "cache_salt", "257 characters, the limit is 256"),
    (sampling(temperature=math.nan), "sampling.temperature", "nan is out of [0, 100]"),
    (sampling(temperature=math.inf), "sampling.temperature", "inf is out of [0, 100]"),
    (sampling(temperature=-0.1), "sampling.temperature", "-0.1 is out of [0, 100]"),
    (sampling(temperature=1e9), "sampling.temperature", "1e+09 is out of [0, 100]"),
    (sampling(top_p=0), "sampling.top_p", "0.0 is out of (0, 1]"),
    (sampling(top_p=1.5), "sampling.top_p", "1.5 is out of (0, 1]"),
    (sampling(top_p=math.nan), "sampling.top_p", "nan is out of (0, 1]"),
    (sampling(top_k=2**32 - 5), "sampling.top_k", "4294967291 is out of [0, 1048576]"),
    (sampling(min_p=-0.5), "sampling.min_p", "-0.5 is out of [0, 1]"),
    (sampling(min_p=1.1), "sampling.min_p", "1.1 is out of [0, 1]"),
    (sampling(presence_penalty=2.5), "sampling.presence_penalty", "2.5 is out of [-2, 2]"),
    (sampling(frequency_penalty=math.nan), "sampling.frequency_penalty", "nan is out of [-2, 2]"),
    (sampling(repetition_penalty=0), "sampling.repetition_penalty", "0.0 is out of (0, 10]"),
    (sampling(logit_bias={100: 1.0}), "sampling.logit_bias", "token id 100 is out of [0, 99]"),
    (sampling(logit_bias={7: math.nan}), "sampling.logit_bias[7]", "nan is out of [-100, 100]"),
    (
        sampling(logit_bias=dict.fromkeys(range(1025), 1.0)),
        "sampling.logit_bias",
        "1025 entries, the limit is 1024",
    ),
    (stopping(max_tokens=0), "stopping.max_tokens", "0 is out of [1, 1048576]"),
    (stopping(max_tokens=2**31), "stopping.max_tokens", "2147483648 is out of [1, 1048576]"),
    (stopping(min_tokens=2**31), "stopping.min_tokens", "2147483648 is out of [0, 1048576]"),
    (stopping(min_tokens=5, max_tokens=4), "stopping.min_tokens", "5 is above stopping.max_tokens, 4"),
    (stopping(stop=["a"] * 17), "stopping.stop", "17 stop strings, the limit is 16"),
    (stopping(stop=["a", ""]), "stopping.stop[1]", "is empty"),
    (stopping(stop=["é" * 257]), "stopping.stop[0]", "257 characters, the limit is 256"),
    (stopping(stop_token_ids=[1] * 65), "stopping.stop_token_ids", "65 token ids, the limit is 64"),
    (
        stopping(stop_token_ids=[5, 2**31]),
        "stopping.stop_token_ids[1]",
        "token id 2147483648 is out of [0, 99]",
    ),
    ({"output": {"logprobs": 21}}, "output.logprobs", "21 is out of [0, 20]"),
    ({"output": {"prompt_logprobs": 2**32 - 1}}, "output.prompt_logprobs", "4294967295 is out of [0, 20]"),
    (
        {"response_format": {"regex": "a" * 65_537}},
        "response_format.regex",
        "65537 bytes, the limit is 65536",
    ),
    ({"n": 0}, "n", "0 is out of [1, 128]"),
    ({"n": 129}, "n", "129 is out of [1, 128]"),
    ({"n": 1_000_000}, "n", "1000000 is out of [1, 128]"),
    ({"queue_timeout": {"seconds": 0}}, "queue_timeout", "0.0 s is out of (0, 86400]"),
    ({"queue_timeout": {"seconds": -1}}, "queue_timeout", "-1.0 s is out of (0, 86400]"),
    (
        {"queue_timeout": {"seconds": 86_400, "nanos": 1}},
        "queue_timeout",
        "86400.000000001 s is out of (0, 86400]",
    ),
    ({"queue_timeout": {"seconds": 2**62}}, "queue_timeout", f"{float(2**62)} s is out of (0, 86400]"),
    (
        {"queue_timeout": {"seconds": 1, "nanos": -1}},
        "queue_timeout",
        "0.999999999 s, its nanos are out of [0, 999999999]",
    ),
]


@pytest.mark.parametrize(("fields", "field", "message"), INVALID, ids=lambda value: str(value)[:40])
def test_a20_a_bad_value_is_refused_with_field_value_and_limit(
    fields: Mapping[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check(**fields)
    assert refused.value.message == f"{field}: {message}"
    assert refused.value.field == field


def test_a20_a_request_without_a_prompt_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^prompt: none of text, token_ids, chat is set") as refused:
        check_generate(pb.GenerateRequest(), LIMITS, MODEL)
    assert refused.value.reason == "EMPTY_PROMPT"


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        sampling(presence_penalty=0, frequency_penalty=0, repetition_penalty=1, logit_bias={3: 0}),
        {"response_format": {}},
        {"output": {}},
    ],
)
def test_neutral_values_are_those_of_absent_fields(fields: Mapping[str, Any]) -> None:
    assert check(**fields) == check()


def test_a20_values_at_their_limits_are_fine() -> None:
    checked = check(
        text="x" * 1000,
        request_id="r" * 128,
        cache_salt="é" * 256,
        priority=-(2**31),
        queue_timeout={"seconds": 86_400},
        sampling={"temperature": 100, "top_p": 1, "top_k": 1 << 20, "min_p": 1, "seed": 2**64 - 1},
        stopping={
            "max_tokens": 1 << 20,
            "min_tokens": 1 << 20,
            "stop": ["é" * 256] * 16,
            "stop_token_ids": [99] * 64,
        },
    )
    assert checked.seed == 2**64 - 1
    assert checked.stop_token_ids == {99}
    assert checked.top_k == 0  # it covers the vocabulary: all tokens
    assert checked.queue_timeout == 86_400


def test_defaults_are_resolved() -> None:
    assert check() == CheckedRequest(
        request_id="",
        prompt=TextPrompt("hi"),
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        seed=None,
        max_tokens=None,
        min_tokens=0,
        stop=(),
        stop_token_ids=frozenset(),
        ignore_eos=False,
        include_stop=False,
        skip_special_tokens=True,
        token_ids_only=False,
        priority=0,
        cache_salt="",
        use_prefix_cache=True,
        queue_timeout=None,
    )


def test_zero_is_a_value_where_zero_is_not_the_default() -> None:
    checked = check(
        sampling={"temperature": 0, "seed": 0},
        output={"skip_special_tokens": False},
        use_prefix_cache=False,
        queue_timeout={"nanos": 500_000_000},
    )
    assert (checked.temperature, checked.seed, checked.queue_timeout) == (0, 0, 0.5)
    assert not checked.skip_special_tokens
    assert not checked.use_prefix_cache


def test_each_kind_of_prompt_is_tagged() -> None:
    tokens = check(token_ids={"ids": [0, 99, 7]}).prompt
    assert isinstance(tokens, TokenPrompt)
    assert tokens.ids.dtype == "int32"
    assert tokens.ids.tolist() == [0, 99, 7]
    assert check(**chat(("user", "a"))).prompt == ChatPrompt(({"role": "user", "content": "a"},))
    no_header = {"chat": {"messages": [{"role": "user"}], "add_generation_prompt": False}}
    assert check(**no_header).prompt == ChatPrompt(({"role": "user", "content": ""},), False)


def test_a_refusal_never_shows_prompt_salt_or_stop_string() -> None:
    secret = "s3cret"
    cases: list[Mapping[str, Any]] = [
        {"text": secret * 200},
        {"cache_salt": secret * 50},
        stopping(stop=[secret * 50]),
        chat(("user", secret * 200)),
        {"response_format": {"regex": secret * 20_000}},
    ]
    for fields in cases:
        with pytest.raises(OctavoError) as refused:
            check(**fields)
        assert secret not in refused.value.message


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({}, {2, 7}),
        ({"ignore_eos": True}, set()),
        ({"stop_token_ids": [5]}, {2, 5, 7}),
        ({"stop_token_ids": [7, 5], "ignore_eos": True}, {5, 7}),
    ],
)
def test_a19_ignore_eos_silences_the_model_s_ids_only(fields: Mapping[str, Any], ids: set[int]) -> None:
    assert check(stopping=fields).ending_ids(frozenset({2, 7})) == ids


def test_penalties_bias_and_logprobs_are_taken_over() -> None:
    given = sampling(
        presence_penalty=-2, frequency_penalty=2, repetition_penalty=10, logit_bias={9: 1, 3: -100}
    )
    checked = check(**given, output={"logprobs": 0, "prompt_logprobs": 20})
    assert (checked.presence_penalty, checked.frequency_penalty, checked.repetition_penalty) == (-2, 2, 10)
    assert checked.logit_bias == ((3, -100), (9, 1))
    assert (checked.logprobs, checked.prompt_logprobs) == (0, 20)
    assert (check().logprobs, check().prompt_logprobs) == (None, None)


@pytest.mark.parametrize("kind", ["json_schema", "regex", "ebnf"])
def test_a_response_format_is_taken_over_unread(kind: str) -> None:
    assert check(response_format={kind: "("}).response_format == (kind, "(")
    with pytest.raises(InvalidArgument, match=r"^stopping\.min_tokens: 2 beside response_format\."):
        check(response_format={kind: "a"}, stopping={"min_tokens": 2})

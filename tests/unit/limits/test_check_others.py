"""A20 for the other methods."""

from typing import Any

import pytest

from octavo.errors import InvalidArgument
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import kv_cache_pb2 as kv_pb
from scheduler_svc.limits import (
    ChatPrompt,
    Limits,
    ModelFacts,
    TextPrompt,
    check_abort,
    check_detokenize,
    check_explain_request,
    check_request_id,
    check_sequence_blocks,
    check_tokenize,
)

LIMITS = Limits(abort_ids=3, detokenize_ids=4, prompt_bytes=10)
MODEL = ModelFacts(max_model_len=64, vocab_size=100)


def test_abort() -> None:
    assert check_abort(pb.AbortRequest(request_ids=["a", "b"]), LIMITS) == ("a", "b")
    assert check_abort(pb.AbortRequest(), LIMITS) == ()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a"] * 4, "request_ids: 4 request ids, the limit is 3"),
        (["a", ""], "request_ids[1]: is empty"),
        (["x" * 129], "request_ids[0]: 129 characters, the limit is 128"),
        (["\x00"], "request_ids[0]: holds a character that cannot be printed"),
    ],
)
def test_a20_abort_refuses(ids: list[str], message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_abort(pb.AbortRequest(request_ids=ids), LIMITS)
    assert refused.value.message == message


def test_tokenize() -> None:
    assert check_tokenize(pb.TokenizeRequest(text="hi"), LIMITS) == TextPrompt("hi", True)
    assert check_tokenize(pb.TokenizeRequest(text=""), LIMITS) == TextPrompt("", True)
    plain = pb.TokenizeRequest(text="hi", add_special_tokens=False)
    assert check_tokenize(plain, LIMITS) == TextPrompt("hi", False)
    chat = pb.TokenizeRequest(chat={"messages": [{"role": "user", "content": "hi"}]})
    assert check_tokenize(chat, LIMITS) == ChatPrompt(({"role": "user", "content": "hi"},))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "input: none of text, chat is set"),
        ({"text": "x" * 11}, "text: 11 bytes, the limit is 10"),
        ({"chat": {}}, "chat.messages: is empty"),
    ],
)
def test_a20_tokenize_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_tokenize(pb.TokenizeRequest(**fields), LIMITS)
    assert refused.value.message == message


def test_detokenize() -> None:
    ids, skip = check_detokenize(pb.DetokenizeRequest(token_ids=[0, 99]), LIMITS, MODEL)
    assert (ids.tolist(), ids.dtype, skip) == ([0, 99], "int32", True)
    ids, skip = check_detokenize(pb.DetokenizeRequest(skip_special_tokens=False), LIMITS, MODEL)
    assert (ids.tolist(), skip) == ([], False)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1] * 5, "token_ids: 5 token ids, the limit is 4"),
        ([1, 2**32 - 1], "token_ids[1]: token id 4294967295 is out of [0, 99]"),
    ],
)
def test_a20_detokenize_refuses(ids: list[int], message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_detokenize(pb.DetokenizeRequest(token_ids=ids), LIMITS, MODEL)
    assert refused.value.message == message


def test_request_ids_that_name_a_request() -> None:
    assert check_request_id("request_id", "chat-1/é", LIMITS) == "chat-1/é"
    assert check_sequence_blocks(kv_pb.GetSequenceBlocksRequest(request_id="a"), LIMITS) == "a"
    with pytest.raises(InvalidArgument, match=r"^request_id: is empty"):
        check_sequence_blocks(kv_pb.GetSequenceBlocksRequest(), LIMITS)
    assert check_explain_request(kv_pb.ExplainRequestRequest(request_id="a"), LIMITS) == "a"
    with pytest.raises(InvalidArgument, match=r"^request_id: is empty"):
        check_explain_request(kv_pb.ExplainRequestRequest(), LIMITS)

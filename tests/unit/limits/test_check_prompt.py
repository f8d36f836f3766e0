"""A20: the prompt against the model, once it is token ids."""

from typing import Any

import numpy as np
import pytest

from octavo.errors import InvalidArgument
from octavo.v1 import inference_pb2 as pb
from scheduler_svc.limits import Limits, ModelFacts, check_generate, check_prompt

MODEL = ModelFacts(max_model_len=64, vocab_size=100)
LIMITS = Limits()


def run(length: int, token_id: int = 1, limits: Limits = LIMITS, **stopping: Any) -> None:
    checked = check_generate(pb.GenerateRequest(text="hi", stopping=stopping), limits, MODEL)
    check_prompt(np.full(length, token_id, np.int32), checked, limits, MODEL)


@pytest.mark.parametrize(
    ("length", "stopping"),
    [(1, {}), (63, {}), (63, {"max_tokens": 1}), (1, {"max_tokens": 63}), (60, {"min_tokens": 4})],
)
def test_a20_a_prompt_with_room_for_its_output_fits(length: int, stopping: dict[str, int]) -> None:
    run(length, **stopping)


@pytest.mark.parametrize(
    ("length", "stopping", "field", "reason", "message"),
    [
        (0, {}, "text", "EMPTY_PROMPT", "gives no token"),
        (64, {}, "text", "EXCEEDS_MODEL_LEN", "64 tokens, the model takes 64 with at least one output token"),
        (65, {}, "text", "EXCEEDS_MODEL_LEN", "65 tokens, the model takes 64 with at least one output token"),
        (
            63,
            {"max_tokens": 2},
            "stopping.max_tokens",
            "EXCEEDS_MODEL_LEN",
            "63 prompt tokens + 2 is 65, the model takes 64",
        ),
        (
            60,
            {"min_tokens": 5},
            "stopping.min_tokens",
            "EXCEEDS_MODEL_LEN",
            "60 prompt tokens + 5 is 65, the model takes 64",
        ),
    ],
)
def test_a20_a_prompt_that_does_not_fit_is_refused(
    length: int, stopping: dict[str, int], field: str, reason: str, message: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        run(length, **stopping)
    assert (refused.value.field, refused.value.reason) == (field, reason)
    assert refused.value.message == f"{field}: {message}"


def test_a20_the_limit_in_tokens_holds_after_tokenisation() -> None:
    with pytest.raises(InvalidArgument, match="11 tokens, the limit is 10"):
        run(11, limits=Limits(prompt_tokens=10))


@pytest.mark.parametrize("token_id", [100, -1])
def test_a20_a_tokenizer_larger_than_the_model_is_caught(token_id: int) -> None:
    with pytest.raises(InvalidArgument, match=r"is out of \[0, 99\]") as refused:
        run(3, token_id)
    assert refused.value.reason == "TOKEN_OUT_OF_VOCABULARY"


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ({"text": "hi"}, "text"),
        ({"token_ids": {"ids": [1]}}, "token_ids"),
        ({"chat": {"messages": [{"role": "user"}]}}, "chat"),
    ],
)
def test_the_refusal_names_the_prompt_s_own_field(prompt: dict[str, Any], field: str) -> None:
    checked = check_generate(pb.GenerateRequest(**prompt), LIMITS, MODEL)
    with pytest.raises(InvalidArgument) as refused:
        check_prompt(np.ones(200, np.int32), checked, LIMITS, MODEL)
    assert refused.value.field == field

"""The bounds that doors know are the scheduler's, and every one is said with field, value and limit."""

import math
import re
from typing import Any

import numpy as np
import pytest

from octavo import bounds
from octavo.errors import OctavoError
from octavo.v1 import inference_pb2 as pb
from octavo_client.convert import to_request
from octavo_client.types import GenerateOptions, Request
from scheduler_svc.limits import Limits, ModelFacts, check_generate

MODEL = ModelFacts(max_model_len=1 << 30, vocab_size=1 << 31)
NAMES = sorted(set(bounds.ALL) - {"token_ids"})
VALUE = r"-?[\d.]+(e\+?\d+)?|nan|-?inf|'.*'|True|None|\[\]"


def refusal(name: str, value: Any) -> str:
    """What is said of a value, at whichever door it is refused; empty when it is taken."""
    given = {"logit_bias": {5: value}, "stop_token_ids": [value]}.get(name, value)
    try:
        message = to_request(Request(prompt="a", options=GenerateOptions(**{name: given})))
        check_generate(message, Limits(), MODEL)
    except OctavoError as error:
        return error.message
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_the_scheduler_takes_the_ends_and_refuses_what_is_beyond(name: str) -> None:
    found = bounds.ALL[name]
    step = 1 if name in bounds.WHOLE else 0.01
    low = found.low + step if found.above else found.low
    assert refusal(name, low) == ""
    assert refusal(name, found.low if found.above else found.low - step)
    if found.high is not None:
        top = found.high if name != "min_tokens" else 1 << 20
        assert refusal(name, top) == ""
        assert refusal(name, found.high + step)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-5, -1e300, 1e300, 1 << 70, -(1 << 70), math.nan, math.inf, "x", 1.5, []])
def test_a20_a_refusal_has_field_value_and_limit(name: str, value: Any) -> None:
    said = refusal(name, value)
    if not said:  # the value is within the bounds
        assert isinstance(value, float | int)
        assert bounds.ALL[name].low <= value <= (bounds.ALL[name].high or math.inf)
        return
    field = rf"(sampling\.|stopping\.|output\.)?{name}(\[\d+\])?"
    limit = r"[\[(]-?[\d.]+, [\d.]+(e\+?\d+)?\]|at least \d+"
    assert re.fullmatch(
        rf"{field}: (token id )?({VALUE})( s)? is (out of|not|no .*number, must be( in)?) ({limit})", said
    ), said


def test_a_float_of_the_wire_is_no_larger_than_what_was_sent() -> None:
    """A float32 would make 1e300 infinite, and the message would show what nobody sent."""
    assert refusal("temperature", 1e300) == "temperature: 1e+300 is out of [0, 100]"
    assert refusal("temperature", float(np.finfo(np.float32).max)) == (
        "sampling.temperature: 3.4028235e+38 is out of [0, 100]"
    )


def test_what_is_no_number_is_not_shown() -> None:
    with pytest.raises(OctavoError) as refused:
        to_request(Request(prompt="\ud800 secret"))
    assert "secret" not in refused.value.message
    assert refused.value.message.startswith("text: ")
    assert pb.GenerateRequest().n == 0

"""A20: whatever bytes arrive, a request is checked or refused, with a leaf of the error tree."""

import random

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from octavo.errors import InvalidArgument, OctavoError, Unimplemented
from octavo.v1 import inference_pb2 as pb
from scheduler_svc.limits import CheckedRequest, Limits, ModelFacts, check_generate, check_prompt
from tests.fixtures.fuzz import fill

LIMITS = Limits()
MODEL = ModelFacts(max_model_len=256, vocab_size=1000)


def assert_sound(checked: CheckedRequest) -> None:
    """What the core may rely on."""
    assert 0 <= checked.temperature <= LIMITS.temperature
    assert 0 < checked.top_p <= 1
    assert 0 <= checked.top_k < MODEL.vocab_size
    assert 0 <= checked.min_p <= 1
    assert checked.seed is None or 0 <= checked.seed < 2**64
    assert checked.max_tokens is None or 1 <= checked.max_tokens <= LIMITS.max_tokens
    assert all(0 <= each < MODEL.vocab_size for each in checked.stop_token_ids)
    assert all(checked.stop)
    assert checked.queue_timeout is None or 0 < checked.queue_timeout <= LIMITS.queue_timeout_seconds


@pytest.mark.parametrize("share", [0.08, 0.2, 0.6])
def test_a20_random_requests_are_checked_or_refused(share: float) -> None:
    draw = random.Random(share)
    outcomes = {"checked": 0, "refused": 0}
    for _ in range(1000):
        request = pb.GenerateRequest()
        fill(draw, request, share)
        if draw.random() < 0.7:
            request.text = "hi"
        try:
            checked = check_generate(request, LIMITS, MODEL)
            assert_sound(checked)
            check_prompt(np.ones(draw.randrange(300), np.int32), checked, LIMITS, MODEL)
            outcomes["checked"] += 1
        except OctavoError as error:
            assert type(error) in (InvalidArgument, Unimplemented)  # noqa: PT017
            assert error.field  # noqa: PT017
            assert len(error.message) < 300  # noqa: PT017
            outcomes["refused"] += 1
    assert outcomes["refused"] > 100
    if share < 0.1:
        assert outcomes["checked"] > 100


def test_a20_random_bytes_that_parse_are_checked_or_refused() -> None:
    draw = random.Random(3)
    whole = pb.GenerateRequest(
        text="hi",
        sampling={"top_p": 0.5, "seed": 3, "top_k": 7},
        stopping={"max_tokens": 5, "stop": ["a", "b"]},
    ).SerializeToString()
    parsed = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            request = pb.GenerateRequest.FromString(bytes(data))
        except DecodeError:
            continue
        parsed += 1
        try:
            assert_sound(check_generate(request, LIMITS, MODEL))
        except (InvalidArgument, Unimplemented):
            continue
    assert parsed > 300

"""A20: whatever bytes arrive, a request is checked or refused, with a leaf of the error tree."""

import random
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError, Message

from octavo.errors import InvalidArgument, OctavoError, Unimplemented
from octavo.v1 import inference_pb2 as pb
from scheduler_svc.limits import CheckedRequest, Limits, ModelFacts, check_generate, check_prompt

LIMITS = Limits()
MODEL = ModelFacts(max_model_len=256, vocab_size=1000)
NUMBERS = [0, 1, 2, 5, 20, 64, 65, 100, 999, 1000, 1001, 2**20, 2**31 - 1, 2**31, 2**32 - 5, 2**32 - 1]
FLOATS = [0.0, -0.0, 1.0, 0.5, 1.5, -1.0, 1e-6, 1e9, -1e9, 1e-45, float("nan"), float("inf"), float("-inf")]
TEXTS = ["", "a", "user", "\x00", "\ufffd", "👩‍👩‍👧", "STOP", "a" * 129, "é" * 257, "x" * 5000]


def value_of(draw: random.Random, field: Field) -> Any:
    if field.type in (Field.TYPE_FLOAT, Field.TYPE_DOUBLE):
        return draw.choice(FLOATS)
    if field.type == Field.TYPE_STRING:
        return draw.choice(TEXTS)
    if field.type == Field.TYPE_BOOL:
        return draw.random() < 0.5
    number = draw.choice(NUMBERS)
    signed = field.type in (Field.TYPE_INT32, Field.TYPE_INT64)
    return number - 2**31 if signed and number >= 2**31 else number


def fill(draw: random.Random, message: Message, share: float) -> None:
    """Sets each field with probability `share`, to values at and over all edges."""
    for field in message.DESCRIPTOR.fields:
        if draw.random() > share:
            continue
        count = draw.choice([0, 1, 2, 17, 70]) if field.is_repeated else 1
        if field.message_type is None:
            values = [value_of(draw, field) for _ in range(count)]
            if field.is_repeated:
                getattr(message, field.name).extend(values)
            else:
                setattr(message, field.name, values[0])
        elif field.message_type.GetOptions().map_entry:
            entries = getattr(message, field.name)
            for _ in range(count):
                entries[draw.choice(NUMBERS)] = draw.choice(FLOATS)
        elif field.is_repeated:
            for _ in range(count):
                fill(draw, getattr(message, field.name).add(), share)
        else:
            child = getattr(message, field.name)
            child.SetInParent()
            fill(draw, child, share)


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

"""What is wrong in an object of a body is named by its own path, never by a class of ours."""

import json

import pytest

from gateway.bodies import CompletionBody, parse
from gateway.errors import ApiError


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x", "schema": False}},
            "response_format.json_schema.schema: should be an object",
        ),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema: is missing"),
        (
            "response_format",
            {"type": "nope"},
            "response_format.type: should be text, json_object or json_schema",
        ),
        (
            "response_format",
            {"type": "text", "x": 1},
            "response_format.x: is no parameter that is served here",
        ),
        ("response_format", {}, "response_format.type: is missing"),
        (
            "response_format",
            5,
            "response_format: must be of type text, json_object or json_schema (with json_schema.schema)",
        ),
        ("structured_outputs", {"regex": 5}, "structured_outputs.regex: should be a valid string"),
        ("structured_outputs", {"json": True}, "structured_outputs.json: should be an object"),
        ("structured_outputs", {"bad": 1}, "structured_outputs.bad: is no parameter that is served here"),
    ],
)
def test_the_path_of_what_is_wrong(field: str, value: object, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(CompletionBody, json.dumps({"prompt": "a", field: value}).encode())
    assert str(caught.value) == message

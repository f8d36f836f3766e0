"""A line of `octavo generate` says what its answer must match by the names of HTTP or of the client."""

import json
from typing import Any

import pytest

from octavo_client.errors import InvalidArgument
from octavo_client.jsonl import parse_request
from octavo_client.types import GenerateOptions

SCHEMA = {"type": "object", "properties": {"ä": {"type": "string"}}}
TEXT = json.dumps(SCHEMA, ensure_ascii=False)


def options_of(**fields: Any) -> GenerateOptions:
    return parse_request(json.dumps({"prompt": "a", **fields}), GenerateOptions(), "r").options


@pytest.mark.parametrize(
    ("fields", "name", "text"),
    [
        ({"json_schema": TEXT}, "json_schema", TEXT),
        ({"json_schema": SCHEMA}, "json_schema", TEXT),
        ({"regex": "[0-9]+"}, "regex", "[0-9]+"),
        ({"ebnf": 'start: "a"'}, "ebnf", 'start: "a"'),
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type": "object"}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            "json_schema",
            TEXT,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", TEXT),
        ({"structured_outputs": {"json": TEXT}}, "json_schema", TEXT),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "ebnf", 'root ::= "a"'),
        ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}}, "regex", "a"),
    ],
)
def test_each_spelling_is_one_option(fields: dict[str, Any], name: str, text: str) -> None:
    options = options_of(**fields)
    found = {key: getattr(options, key) for key in ("json_schema", "regex", "ebnf")}
    assert found == {"json_schema": None, "regex": None, "ebnf": None, name: text}


def test_free_text_is_no_constraint() -> None:
    assert options_of(response_format={"type": "text"}, json_schema=None) == GenerateOptions()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"json_schema": 5}, "json_schema: int, must be an object or its text"),
        ({"regex": {}}, "regex: dict, must be a text"),
        ({"response_format": "json"}, "response_format: must be of type text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format: must be of type"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs: must be an object with one of json"),
        (
            {"structured_outputs": {"regex": "a", "json": {}}},
            "structured_outputs: must be an object with one of json, regex, grammar",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "json_schema": SCHEMA},
            "structured_outputs: is given beside json_schema",
        ),
        (
            {"response_format": {"type": "json_object"}, "ebnf": "x"},
            "response_format: is given beside ebnf",
        ),
    ],
)
def test_what_is_none_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        options_of(**fields)
    assert refused.value.message.startswith(said)
    assert refused.value.field == said.partition(":")[0]

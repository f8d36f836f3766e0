"""What an answer must match, in the spellings of HTTP and of the Python client.

Owns the way from one to the other; knows no file and no server. Invariant: at most one constraint is given,
and what is none is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo_client.errors import InvalidArgument

CONSTRAINTS = ("response_format", "structured_outputs")
"""HTTP's names; the client's are fields of GenerateOptions."""
_OWN = ("json_schema", "regex", "ebnf")
_STRUCTURED = {"json": "json_schema", "regex": "regex", "grammar": "ebnf"}
_ANY_OBJECT = '{"type": "object"}'


def constraint_of(over_http: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, str]:
    """json_schema, regex or ebnf as GenerateOptions has them; empty for free text. own: fields by the
    client's names, whose json_schema may be an object. Raises InvalidArgument.
    """
    found = {name: own[name] for name in _OWN if own.get(name) is not None}
    if "response_format" in over_http:
        found |= _of_response_format(over_http["response_format"], found)
    if "structured_outputs" in over_http:
        found |= _of_structured_outputs(over_http["structured_outputs"], found)
    return {name: _text(name, value) for name, value in found.items()}


def _of_response_format(given: Any, beside: Mapping[str, Any]) -> dict[str, Any]:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return _alone("response_format", {"json_schema": _ANY_OBJECT}, beside)
    spec = given.get("json_schema") if kind == "json_schema" else None
    if not isinstance(spec, dict) or "schema" not in spec:
        raise InvalidArgument(
            "response_format: must be of type text, json_object or json_schema (with json_schema.schema)",
            field="response_format",
        )
    return _alone("response_format", {"json_schema": spec["schema"]}, beside)


def _of_structured_outputs(given: Any, beside: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given, dict) or len(given) != 1 or not set(given) <= set(_STRUCTURED):
        raise InvalidArgument(
            "structured_outputs: must be an object with one of json, regex, grammar",
            field="structured_outputs",
        )
    ((name, value),) = given.items()
    return _alone("structured_outputs", {_STRUCTURED[name]: value}, beside)


def _alone(field: str, found: dict[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    if beside:
        raise InvalidArgument(f"{field}: is given beside {', '.join(beside)}", field=field)
    return found


def _text(name: str, value: Any) -> str:
    """A schema as JSON; anything else is text already."""
    if name == "json_schema" and isinstance(value, dict):
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except ValueError:
            raise InvalidArgument(f"{name}: holds a number that is none", field=name) from None
    if not isinstance(value, str):
        kind = "an object or its text" if name == "json_schema" else "a text"
        raise InvalidArgument(f"{name}: {type(value).__name__}, must be {kind}", field=name)
    return value

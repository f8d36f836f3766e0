"""The bodies of each endpoint, and their reading.

Owns what only one endpoint takes, and the words of a body that does not fit; knows no answer. Invariant: a
message names the parameter and never repeats what a prompt said.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, WithJsonSchema

from gateway.errors import ApiError, refused
from gateway.parameters import WIDER, Body, OnlyFalse, OnlyOne, OnlyTrue, Parameters, at
from octavo import bounds
from octavo.roles import ROLES

B = TypeVar("B", bound=Body)
DEFAULT_COMPLETION_TOKENS = 16
"""max_tokens of /v1/completions, as OpenAI has it."""
_KINDS = {
    "response_format.type": "should be text, json_object or json_schema",
    "prompt": "must be a string, a list of strings, a list of token ids, or a list of such lists",
    "stop": "must be a string or a list of strings",
    "best_of": "should be 1",
    "response_format": "must be of type text, json_object or json_schema (with json_schema.schema)",
}
_NO_NUMBER = ("int_", "float_", "finite_number")
_NUMBERS = {"max_completion_tokens": "max_tokens", "top_logprobs": "logprobs", "tokens": "token_ids"}
"""Numbers that the client knows by another name."""
_MEMBERS = ("TextFormat", "JsonObjectFormat", "JsonSchemaFormat")
"""Pydantic names the members of a union in the place of an error by their classes."""
_OBJECTS = ("response_format", "structured_outputs")
_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_CALL = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": ["string", "object"]}},
            "required": ["name"],
        },
    },
    "required": ["function"],
}
MESSAGE_SCHEMA = {
    "type": "object",
    "description": "A turn. Parts of content other than text are refused. A role that the model's chat "
    "template names is taken too.",
    "properties": {
        "role": {"type": "string", "enum": list(ROLES)},
        "content": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": _TEXT_PART, "minItems": 1},
                {"type": "null"},
            ]
        },
        "name": {"type": ["string", "null"]},
        "tool_calls": {"anyOf": [{"type": "array", "items": _CALL, "maxItems": 128}, {"type": "null"}]},
        "tool_call_id": {"type": ["string", "null"]},
        "reasoning_content": {"type": ["string", "null"]},
        "refusal": {"type": "null"},
        "audio": {"type": "null"},
        "function_call": {"type": "null"},
        "annotations": {"anyOf": [{"type": "array", "maxItems": 0}, {"type": "null"}]},
    },
    "required": ["role"],
    "additionalProperties": False,
}
TOOL_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "description": {"type": ["string", "null"]},
                "parameters": {"type": ["object", "null"]},
            },
            "required": ["name"],
        },
    },
    "required": ["function"],
}
Messages = Annotated[
    list[dict[str, Any]],
    WithJsonSchema({"type": "array", "items": MESSAGE_SCHEMA, "minItems": 1, "maxItems": 1024}),
]
Tools = Annotated[
    list[dict[str, Any]], WithJsonSchema({"type": "array", "items": TOOL_SCHEMA, "maxItems": 128})
]
TokenId = Annotated[int, Field(json_schema_extra={"minimum": 0})]


class CompletionBody(Parameters):
    """POST /v1/completions. max_tokens is 16 unless given."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    logprobs: int | None = Field(
        None,
        json_schema_extra=at("logprobs"),
        description="Log-probabilities of the sampled tokens and of so many of the likeliest.",
    )
    best_of: OnlyOne | None = Field(None, description="Only 1.")
    echo: OnlyFalse | None = Field(None, description="Only false.")
    suffix: Literal[""] | None = Field(None, description="Only empty.")


class ChatBody(Parameters):
    """POST /v1/chat/completions. Without max_tokens or max_completion_tokens: to the context limit."""

    messages: Messages
    max_completion_tokens: int | None = Field(None, json_schema_extra=at("max_tokens"))
    logprobs: bool | None = None
    top_logprobs: int | None = Field(
        None, json_schema_extra=at("logprobs"), description="Only with logprobs."
    )
    tools: Tools | None = Field(None, description="Shown to the model by its chat template.")
    tool_choice: Literal["none", "auto"] | None = Field(
        None, description="none: tools are not shown. A call that the model makes is text of the answer."
    )
    parallel_tool_calls: OnlyTrue | None = Field(None, description="Taken without effect.")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Further variables of the chat template, as enable_thinking."
    )
    add_generation_prompt: bool | None = Field(
        None, description="Default true: the prompt ends with the header of the assistant's turn."
    )
    modalities: list[Literal["text"]] | None = Field(None, description="Taken without effect.")


class TokenizeBody(Body):
    """POST /tokenize: of a prompt, or of messages through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = Field(None, description="For a prompt.")
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[TokenId]
    skip_special_tokens: bool | None = Field(None, description="Default false.")


def parse(kind: type[B], body: bytes) -> B:
    """The body of an endpoint. Raises ApiError (400) naming the first parameter that does not fit."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=False)) from None


def plain_messages(messages: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages without what says nothing: keys that are null, and empty annotations of an earlier answer."""
    return [
        {
            key: value
            for key, value in message.items()
            if value is not None and not (key == "annotations" and value == [])
        }
        for message in messages
    ]


def _refusal(errors: list[Any]) -> ApiError:
    errors = _of_the_meant_member(errors)
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    error = (unknown or errors)[0]
    if error["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {error['msg'].removeprefix('Invalid JSON: ')}")
    if not error["loc"]:
        return ApiError(400, "the body must be a JSON object")
    param, path = str(error["loc"][0]), ".".join(str(part) for part in error["loc"] if part not in _MEMBERS)
    if error["type"] == "extra_forbidden":
        return refused(path, "is no parameter that is served here", "unknown_parameter")
    if error["type"] == "missing":
        return refused(path, "is missing")
    if error["type"].startswith(_NO_NUMBER) and (number := _NUMBERS.get(param, param)) in bounds.ALL:
        why = bounds.refusal(number, error["input"], _place(error["loc"]), WIDER.get(number))
        return ApiError(400, why, param=param)
    if param in _OBJECTS:
        return refused(path, _KINDS.get(path) or error["msg"].replace("Input should", "should"))
    return refused(param, _KINDS.get(param) or error["msg"].replace("Input should", "should"))


def _place(path: tuple[int | str, ...]) -> str:
    return str(path[0]) + "".join(f"[{part!s:.60}]" for part in path[1:])


def _of_the_meant_member(errors: list[Any]) -> list[Any]:
    """Without those of a union's members whose `type` is not the given one, if others are left."""
    others = {
        error["loc"][:-1]
        for error in errors
        if error["type"] == "literal_error" and error["loc"][-1] == "type" and error["loc"][-2] in _MEMBERS
    }
    meant = [error for error in errors if not any(error["loc"][: len(other)] == other for other in others)]
    return meant or errors

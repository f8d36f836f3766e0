"""Parameters that /v1/completions and /v1/chat/completions have in common, and what they mean over gRPC.

Owns their names, types and documentation, and the way into GenerateOptions; does not check ranges, which the
scheduler does for every door. Invariant: an unknown name is refused, and a parameter that is taken without
effect says so in its description.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.errors import ApiError, refused
from octavo import bounds
from octavo.bounds import Bounds
from octavo_client.types import GenerateOptions

WIDER = {"seed": Bounds(-(1 << 63), (1 << 64) - 1), "top_k": Bounds(-1, bounds.WHOLE["top_k"].high)}
"""Numbers of which HTTP takes more than the scheduler, as OpenAI and vLLM do."""


def at(name: str, most: int | None = None) -> dict[str, Any]:
    """The range of a number for the OpenAPI document, by the client's name; the scheduler refuses what is out
    of it. most: where the scheduler's settings decide.
    """
    found = WIDER.get(name) or bounds.ALL[name]
    return {
        "exclusiveMinimum" if found.above else "minimum": found.low,
        "maximum": found.high if most is None else most,
    }


class Body(BaseModel):
    """Any request body: no unknown names, and a number is a number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def _only(value: bool | int) -> AfterValidator:
    """A check for a parameter that is served with one value; its type says that true is no 1, and 0 no
    false.
    """

    def check(given: bool | int) -> bool | int:
        if given != value:
            raise PydanticCustomError("only", "Input should be {shown}", {"shown": json.dumps(value)})
        return given

    return AfterValidator(check)


OnlyOne = Annotated[int, _only(1), WithJsonSchema({"type": "integer", "const": 1})]
OnlyTrue = Annotated[bool, _only(True), WithJsonSchema({"type": "boolean", "const": True})]
OnlyFalse = Annotated[bool, _only(False), WithJsonSchema({"type": "boolean", "const": False})]


class StreamOptions(Body):
    """What a stream tells beside its text."""

    include_usage: bool | None = Field(None, description="A last chunk with the usage and no choices.")


class JsonSchemaSpec(Body):
    """The json_schema of a response format."""

    name: str | None = Field(None, description="Taken without effect.")
    description: str | None = Field(None, description="Taken without effect.")
    strict: bool | None = Field(None, description="Taken without effect: the schema always holds.")
    schema_: dict[str, Any] = Field(alias="schema", description="A JSON Schema.")


class TextFormat(Body):
    """Free text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaSpec


class StructuredOutputs(Body):
    """Constrained output by vLLM's names: exactly one of them."""

    json_: dict[str, Any] | None = Field(None, alias="json", description="A JSON Schema.")
    regex: str | None = Field(None, description="A regular expression that the whole text matches.")
    grammar: str | None = Field(None, description="A grammar in EBNF.")


class Parameters(Body):
    """Sampling, stopping and scheduling, by OpenAI's names where it has one, then by vLLM's."""

    model: str | None = Field(None, description="Name of the served model; absent: the served one.")
    n: int | None = Field(None, json_schema_extra=at("n", most=128), description="Answers for each prompt.")
    temperature: float | None = Field(None, json_schema_extra=at("temperature"), description="0 is greedy.")
    top_p: float | None = Field(None, json_schema_extra=at("top_p"))
    top_k: int | None = Field(None, json_schema_extra=at("top_k"), description="0 or -1: all tokens.")
    min_p: float | None = Field(None, json_schema_extra=at("min_p"))
    presence_penalty: float | None = Field(None, json_schema_extra=at("presence_penalty"))
    frequency_penalty: float | None = Field(None, json_schema_extra=at("frequency_penalty"))
    repetition_penalty: float | None = Field(None, json_schema_extra=at("repetition_penalty"))
    seed: int | None = Field(
        None,
        json_schema_extra=at("seed"),
        description="Makes sampling repeatable. A negative one counts as its two's complement.",
    )
    logit_bias: dict[str, float] | None = Field(None, description="Token id to bias in [-100, 100].")
    max_tokens: int | None = Field(None, json_schema_extra=at("max_tokens"))
    min_tokens: int | None = Field(None, json_schema_extra=at("min_tokens"))
    stop: str | list[str] | None = Field(None, description="At most 16 strings of 1 to 256 characters.")
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: int | None = Field(
        None, json_schema_extra=at("priority"), description="A smaller one is served first."
    )
    cache_salt: str | None = Field(
        None, json_schema_extra={"maxLength": 256}, description="Namespace of the prefix cache."
    )
    use_prefix_cache: bool | None = None
    queue_timeout: float | None = Field(
        None,
        json_schema_extra=at("queue_timeout"),
        description="Longest wait for the first step, in seconds.",
    )
    return_token_ids: bool | None = Field(None, description="Adds token_ids to each choice.")
    user: str | None = Field(None, description="Taken without effect.")
    safety_identifier: str | None = Field(None, description="Taken without effect.")
    prompt_cache_key: str | None = Field(None, description="Taken without effect: every prefix is cached.")
    metadata: dict[str, str] | None = Field(None, description="Taken without effect.")
    store: OnlyFalse | None = Field(None, description="Nothing is stored.")
    service_tier: Literal["auto", "default"] | None = Field(None, description="Taken without effect.")


def options_of(given: Parameters, *, max_tokens: int | None, logprobs: int | None) -> GenerateOptions:
    """The client's options of a request. Raises ApiError naming the parameter."""
    return GenerateOptions(
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=_top_k(given.top_k),
        min_p=given.min_p,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        repetition_penalty=given.repetition_penalty,
        seed=_seed(given.seed),
        logit_bias=_bias(given.logit_bias or {}),
        max_tokens=max_tokens,
        min_tokens=given.min_tokens,
        stop=[given.stop] if isinstance(given.stop, str) else given.stop or (),
        stop_token_ids=given.stop_token_ids or (),
        ignore_eos=bool(given.ignore_eos),
        include_stop_str_in_output=bool(given.include_stop_str_in_output),
        logprobs=logprobs,
        skip_special_tokens=given.skip_special_tokens,
        n=given.n,
        priority=given.priority or 0,
        cache_salt=given.cache_salt or "",
        use_prefix_cache=given.use_prefix_cache,
        queue_timeout=given.queue_timeout,
        **_format(given),
    )


def _top_k(given: int | None) -> int | None:
    return 0 if given == -1 else _checked("top_k", given)


def _seed(given: int | None) -> int | None:
    found = _checked("seed", given)
    return None if found is None else found % (1 << 64)


def _checked(name: str, given: int | None) -> int | None:
    """A number within what HTTP takes. Raises ApiError."""
    found = WIDER[name]
    assert found.high is not None
    if given is not None and not found.low <= given <= found.high:
        raise ApiError(400, bounds.refusal(name, given, own=found), param=name)
    return given


def _bias(given: dict[str, float]) -> dict[int, float]:
    for key in given:
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise refused("logit_bias", f"{key!r:.60} is no token id")
    return {int(key): bias for key, bias in given.items()}


def _format(given: Parameters) -> dict[str, Any]:
    """json_schema, regex or ebnf of GenerateOptions."""
    wanted = given.structured_outputs
    chosen = given.response_format
    if wanted is None:
        if isinstance(chosen, JsonSchemaFormat):
            return {"json_schema": _json(chosen.json_schema.schema_)}
        return {"json_schema": '{"type": "object"}'} if isinstance(chosen, JsonObjectFormat) else {}
    if chosen is not None and not isinstance(chosen, TextFormat):
        raise refused("structured_outputs", "is given beside response_format")
    schema = None if wanted.json_ is None else _json(wanted.json_)
    options = {"json_schema": schema, "regex": wanted.regex, "ebnf": wanted.grammar}
    found = {name: value for name, value in options.items() if value is not None}
    if len(found) != 1:
        raise refused("structured_outputs", f"has {len(found)} of json, regex, grammar; must have one")
    return found


def _json(schema: dict[str, Any]) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise refused("response_format", "the schema holds a number that is none") from None

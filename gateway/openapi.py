"""The OpenAPI document, from the bodies and shapes that the code itself uses.

Owns paths, answers and their descriptions; repeats no field. Invariant: a status that an endpoint can answer
with stands here.
"""

from importlib import metadata
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from gateway import bodies, shapes
from gateway.errors import ErrorBody

_REF = "#/components/schemas/{model}"
_SHAPES: dict[str, Any] = {
    "ErrorBody": ErrorBody,
    "Completion": shapes.Completion,
    "ChatCompletion": shapes.ChatCompletion,
    "ChatChunk": shapes.ChatChunk,
    "Model": shapes.Model,
    "ModelList": shapes.ModelList,
    "Tokens": shapes.Tokens,
    "Text": shapes.Text,
    "Health": shapes.Health,
}
_BODIES = (bodies.CompletionBody, bodies.ChatBody, bodies.TokenizeBody, bodies.DetokenizeBody)
_ERRORS = {
    "400": "A parameter is wrong or not served; `error.param` names it.",
    "401": "No API key, or one that is not accepted.",
    "404": "Another model than the served one.",
    "408": "The body did not come in time.",
    "409": "The id given as X-Request-Id is that of a running request.",
    "413": "The body is larger than this gateway takes.",
    "415": "The body is not application/json.",
    "429": "The scheduler's queue is full; Retry-After says when to try again.",
    "500": "A fault of the service.",
    "503": "The scheduler or its worker is not there, or shuts down; Retry-After says when to try again.",
    "504": "queue_timeout ran out.",
}
_GET_ERRORS = ("401", "404", "500", "503")


def document(*, with_keys: bool) -> dict[str, Any]:
    """The document. with_keys: whether this gateway asks for an API key."""
    paths = {
        "/v1/models": _get("listModels", "The served model.", "ModelList"),
        "/v1/models/{model}": _get("getModel", "The served model by its name.", "Model", model_path=True),
        "/v1/completions": _post(
            "createCompletion", "Go on from prompts.", "CompletionBody", "Completion", "Completion"
        ),
        "/v1/chat/completions": _post(
            "createChatCompletion", "Answer a conversation.", "ChatBody", "ChatCompletion", "ChatChunk"
        ),
        "/tokenize": _post("tokenize", "Token ids of a text or a chat.", "TokenizeBody", "Tokens"),
        "/detokenize": _post("detokenize", "The text of token ids.", "DetokenizeBody", "Text"),
        "/health": _get("health", "Whether requests can be served.", "Health", is_open=True),
        "/metrics": _other("metrics", "Metrics for Prometheus.", "text/plain"),
        "/openapi.json": _other("openapi", "This document.", "application/json"),
    }
    components: dict[str, Any] = {"schemas": _schemas()}
    if with_keys:
        components["securitySchemes"] = {"apiKey": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Octavo",
            "version": metadata.version("octavo"),
            "description": "OpenAI-compatible text generation. What is not listed is refused by name.",
        },
        "paths": paths,
        "components": components,
        **({"security": [{"apiKey": []}]} if with_keys else {}),
    }


def _schemas() -> dict[str, Any]:
    _, top = models_json_schema([(body, "validation") for body in _BODIES], ref_template=_REF)
    found: dict[str, Any] = dict(top["$defs"])
    for name, shape in _SHAPES.items():
        schema = TypeAdapter(shape).json_schema(ref_template=_REF, mode="serialization")
        found |= schema.pop("$defs", {})
        found[name] = schema
    return found


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=name)}}}


def _failures(codes: Any) -> dict[str, Any]:
    return {code: {"description": _ERRORS[code], "content": _json("ErrorBody")} for code in codes}


def _get(
    name: str, summary: str, answer: str, *, model_path: bool = False, is_open: bool = False
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "responses": {"200": {"description": summary, "content": _json(answer)}, **_failures(_GET_ERRORS)},
    }
    if model_path:
        parameter = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [parameter]
    return {"get": operation | ({"security": []} if is_open else {})}


def _post(name: str, summary: str, body: str, answer: str, chunk: str = "") -> dict[str, Any]:
    content = _json(answer)
    if chunk:
        content["text/event-stream"] = {"schema": _event(chunk)}
    request_id = {
        "name": "X-Request-Id",
        "in": "header",
        "description": "Becomes part of the answer's id, if it is 1 to 64 printable ASCII characters.",
        "schema": {"type": "string"},
    }
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            **({"parameters": [request_id]} if chunk else {}),
            "requestBody": {"required": True, "content": _json(body)},
            "responses": {"200": {"description": summary, "content": content}, **_failures(_ERRORS)},
        }
    }


def _event(chunk: str) -> dict[str, Any]:
    """Of one server-sent event: a chunk, [DONE] at the end, or an error in its place."""
    data = {
        "type": "string",
        "description": f"JSON of {chunk}; `[DONE]` at the end, or ErrorBody in its place.",
        "contentMediaType": "application/json",
    }
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _other(name: str, summary: str, kind: str) -> dict[str, Any]:
    answer = {"description": summary, "content": {kind: {"schema": {}}}}
    return {"get": {"operationId": name, "summary": summary, "responses": {"200": answer}, "security": []}}

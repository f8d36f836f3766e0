"""The OpenAPI document: valid, closed, and with the scheduler's own limits."""

import asyncio
from typing import Any

import pytest
from starlette.routing import Route

from gateway.app import build_app
from gateway.auth import ApiKeys
from gateway.config import Settings
from gateway.metrics import ROUTES
from gateway.openapi import document
from octavo_client.aio import AsyncClient
from octavo_client.types import GenerateOptions
from scheduler_svc.limits import Limits

DOCUMENT = document(with_keys=False)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def test_every_path_is_described_and_counted_and_no_other() -> None:
    async def paths() -> set[str]:
        app = build_app(Settings(), AsyncClient("127.0.0.1:1"), ApiKeys())
        return {route.path.replace(":path", "") for route in app.routes if isinstance(route, Route)}

    assert asyncio.run(paths()) == set(DOCUMENT["paths"]) == set(ROUTES)


def test_bodies_take_no_unknown_name() -> None:
    for name, schema in SCHEMAS.items():
        if name.endswith(("Body", "Options", "Format", "Spec", "Outputs")) and name != "ErrorBody":
            assert schema["additionalProperties"] is False, name


@pytest.mark.parametrize("name", ["CompletionBody", "ChatBody"])
def test_every_option_of_the_client_has_a_parameter_or_a_reason(name: str) -> None:
    """So that a field added to the schema cannot be forgotten here."""
    elsewhere = {"json_schema", "regex", "ebnf", "prompt_logprobs", "token_ids_only"}
    of_chats = {"tools", "chat_template_kwargs", "add_generation_prompt"}
    elsewhere |= of_chats if name == "CompletionBody" else set()
    options = set(GenerateOptions.__dataclass_fields__) - elsewhere
    assert options <= set(SCHEMAS[name]["properties"])


def test_ranges_are_those_of_the_scheduler() -> None:
    limits = Limits()
    properties = SCHEMAS["ChatBody"]["properties"]
    found = {name: properties[name].get("maximum") for name in properties}
    assert found["n"] == limits.n
    assert found["temperature"] == limits.temperature
    assert found["top_k"] == limits.top_k
    assert found["presence_penalty"] == found["frequency_penalty"] == limits.penalty
    assert found["repetition_penalty"] == limits.repetition_penalty
    assert found["max_tokens"] == found["max_completion_tokens"] == found["min_tokens"] == limits.max_tokens
    assert found["top_logprobs"] == limits.top_logprobs
    assert found["queue_timeout"] == limits.queue_timeout_seconds
    assert properties["cache_salt"]["maxLength"] == limits.cache_salt
    assert properties["messages"]["maxItems"] == limits.chat_messages
    assert properties["tools"]["anyOf"][0]["maxItems"] == limits.chat_tools

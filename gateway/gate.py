"""What the endpoints share: the client of the scheduler, the model's card, the settings.

Owns nothing that a request leaves behind; knows no endpoint. Invariant: a large body never holds the event
loop while it is read.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TypeVar

from gateway.auth import namespace_of
from gateway.bodies import parse
from gateway.config import Settings
from gateway.exchange import Exchange
from gateway.model_card import Cards
from gateway.parameters import Body
from octavo_client.aio import AsyncClient
from octavo_client.types import GenerateOptions

B = TypeVar("B", bound=Body)
_INLINE_BYTES = 1 << 17
"""A longer body is read in a thread."""


class Gate:
    """Made once a process, inside the running loop."""

    def __init__(self, settings: Settings, client: AsyncClient) -> None:
        self.settings = settings
        self.client = client
        self.cards = Cards(client, settings.served_model_name)

    async def parsed(self, kind: type[B], exchange: Exchange) -> B:
        """The body of an endpoint, whose bytes are forgotten. Raises ApiError (400)."""
        body = exchange.body
        try:
            if len(body) <= _INLINE_BYTES:
                return parse(kind, body)
            return await asyncio.to_thread(parse, kind, body)
        finally:
            exchange.drop_body()

    def salted(self, options: GenerateOptions, key: str) -> GenerateOptions:
        """The options, in the namespace of an API key where the operator asked for that."""
        if not self.settings.salt_by_api_key:
            return options
        return dataclasses.replace(options, cache_salt=namespace_of(key, options.cache_salt))

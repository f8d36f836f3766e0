"""The served model as GetModelInfo tells it, kept for a moment.

Owns the name under which a model is served; knows no endpoint. Invariant: a name that is not the served one
is refused only after the scheduler was asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from gateway.errors import ApiError
from octavo_client.aio import AsyncClient
from octavo_client.types import ModelInfo

FRESH_SECONDS = 5.0


@dataclass(frozen=True)
class Card:
    """name: as clients know the model."""

    name: str
    info: ModelInfo

    @property
    def fingerprint(self) -> str:
        """OpenAI's system_fingerprint: it changes with the weights."""
        return f"fp_{self.info.model_fingerprint[:16]}"


class Cards:
    """Asks the scheduler, at most every FRESH_SECONDS unless a name is unknown. clock: seconds."""

    def __init__(
        self, client: AsyncClient, served_name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._served_name = served_name
        self._clock = clock
        self._card: Card | None = None
        self._asked_at = 0.0

    async def get(self) -> Card:
        """The card. Raises an OctavoError when the scheduler cannot tell."""
        if self._card is None or self._clock() - self._asked_at > FRESH_SECONDS:
            return await self._ask()
        return self._card

    async def named(self, name: str | None) -> Card:
        """The card, checked against the model that a client asks for. Raises ApiError (404)."""
        card = await self.get()
        if name is None or name == card.name:
            return card
        card = await self._ask()
        if name != card.name:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"model: {name[:128]!r} is not served here; {card.name!r} is",
                param="model",
                code="model_not_found",
            )
        return card

    async def _ask(self) -> Card:
        info = await self._client.model_info()
        self._card = Card(self._served_name or info.model_id, info)
        self._asked_at = self._clock()
        return self._card

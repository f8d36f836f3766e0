"""The small endpoints: models, tokens and text, health, metrics, the OpenAPI document.

Owns their answers; knows no generation. Invariant: none of them changes anything anywhere.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus

from gateway.bodies import DetokenizeBody, TokenizeBody, plain_messages
from gateway.errors import SERVER, ApiError, from_octavo, refused
from gateway.exchange import Exchange, encode
from gateway.gate import Gate
from gateway.metrics import CONTENT_TYPE, Metrics
from gateway.model_card import Card
from gateway.shapes import Health, Model, ModelList, Text, Tokens
from octavo.errors import OctavoError

_HEALTH_SECONDS = 4.0


class Others:
    """Handlers by name. document: the OpenAPI document."""

    def __init__(self, gate: Gate, metrics: Metrics, document: object) -> None:
        self._gate = gate
        self._metrics = metrics
        self._document = encode(document)
        self._since = int(time.time())

    async def models(self, exchange: Exchange) -> None:
        card = await self._gate.cards.get()
        await exchange.json(ModelList(object="list", data=[self._model(card)]))

    async def model(self, exchange: Exchange) -> None:
        await exchange.json(self._model(await self._gate.cards.named(exchange.path_params["model"])))

    async def tokenize(self, exchange: Exchange) -> None:
        body = await self._gate.parsed(TokenizeBody, exchange)
        if (body.prompt is None) == (body.messages is None):
            raise refused("prompt", "give exactly one of prompt and messages")
        for name in ("tools", "chat_template_kwargs"):
            if body.messages is None and getattr(body, name) is not None:
                raise refused(name, "is only for messages")
        if body.messages is not None and body.add_special_tokens is not None:
            raise refused("add_special_tokens", "is only for a prompt: a chat template writes its own")
        card = await self._gate.cards.named(body.model)
        ids = await self._gate.client.tokenize(
            body.prompt,
            messages=None if body.messages is None else plain_messages(body.messages),
            add_special_tokens=body.add_special_tokens,
            tools=body.tools,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        await exchange.json(Tokens(count=len(ids), max_model_len=card.info.max_model_len, tokens=list(ids)))

    async def detokenize(self, exchange: Exchange) -> None:
        body = await self._gate.parsed(DetokenizeBody, exchange)
        await self._gate.cards.named(body.model)
        try:
            text = await self._gate.client.detokenize(
                body.tokens, skip_special_tokens=bool(body.skip_special_tokens)
            )
        except OctavoError as error:
            raise from_octavo(error, {"token_ids": "tokens"}) from None
        await exchange.json(Text(prompt=text))

    async def health(self, exchange: Exchange) -> None:
        """Ready means that the scheduler answers and has a worker."""
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                missing = await self._gate.client.readiness()
        except TimeoutError:
            missing = f"the scheduler did not answer within {_HEALTH_SECONDS:g} s"
        if missing:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                missing,
                kind=SERVER,
                code="not_ready",
                headers={"retry-after": "1"},
            )
        await exchange.json(Health(status="ok"))

    async def metrics(self, exchange: Exchange) -> None:
        await exchange.send_whole(self._metrics.text(), CONTENT_TYPE)

    async def document(self, exchange: Exchange) -> None:
        await exchange.send_whole(self._document, "application/json")

    def _model(self, card: Card) -> Model:
        return Model(
            id=card.name,
            object="model",
            created=self._since,
            owned_by="octavo",
            root=card.info.model_id,
            max_model_len=card.info.max_model_len,
        )

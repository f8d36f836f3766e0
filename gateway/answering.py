"""The course of a call that generates: id, model, answer whole or as a stream, failure.

Owns what completions and chats have in common; knows the shape of neither. Invariant: every answer carries
its call's id in a header, and a failure behind the gateway is told under the names of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gateway import generation
from gateway.errors import from_octavo, refused
from gateway.exchange import Exchange
from gateway.gate import Gate
from gateway.model_card import Card
from gateway.parameters import Parameters
from octavo.errors import OctavoError


class Answer(Protocol):
    """What comes back for one call."""

    async def whole(self, gate: Gate) -> object: ...

    async def stream(self, gate: Gate, exchange: Exchange) -> None: ...


async def answer(
    gate: Gate,
    exchange: Exchange,
    body: Parameters,
    prefix: str,
    begin: Callable[[str, Card], Answer],
    names: Mapping[str, str] | None = None,
) -> None:
    """Answers a call. prefix: of its id. begin: makes its answer from the id and the model's card. names: the
    endpoint's further parameter names, see `from_octavo`. Raises ApiError.
    """
    if body.structured_outputs is not None:
        names = {**(names or {}), "response_format.json_schema": "structured_outputs.json"}
    card = await gate.cards.named(body.model)
    call_id = generation.new_id(prefix, exchange.headers.get("x-request-id", ""))
    exchange.answer_headers["x-request-id"] = call_id
    if body.stream_options is not None and not body.stream:
        raise refused("stream_options", "is only for stream: true")
    made = begin(call_id, card)
    try:
        if body.stream:
            await made.stream(gate, exchange)
        else:
            await exchange.json(await made.whole(gate))
    except OctavoError as error:
        raise from_octavo(error, names) from None

"""POST /v1/chat/completions: messages in, the assistant's next message out, whole or as a stream.

Owns the endpoint's shapes; does not know chat templates. Invariant: the first chunk of each choice names the
role, and the contents of a stream joined are the content of the whole answer.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import aclosing

from gateway import generation
from gateway.answering import answer
from gateway.bodies import ChatBody, plain_messages
from gateway.errors import refused
from gateway.exchange import Exchange
from gateway.gate import Gate
from gateway.generation import UsageSum
from gateway.logprobs import for_chat
from gateway.model_card import Card
from gateway.parameters import options_of
from gateway.shapes import ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatMessage
from octavo_client.types import Accepted, Choice, Delta, Event, Finished, PositionLogprobs, Request

_NAMES = {"logprobs": "top_logprobs"}


class ChatCompletions:
    """The endpoint."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __call__(self, exchange: Exchange) -> None:
        body = await self._gate.parsed(ChatBody, exchange)

        def begin(call_id: str, card: Card) -> _Answer:
            return _Answer(call_id, card, body, self._request(body, call_id, exchange.key))

        newer = body.max_completion_tokens is not None
        names = _NAMES | {"max_tokens": "max_completion_tokens"} if newer else _NAMES
        await answer(self._gate, exchange, body, "chatcmpl", begin, names)

    def _request(self, body: ChatBody, call_id: str, key: str) -> Request:
        if body.top_logprobs is not None and not body.logprobs:
            raise refused("top_logprobs", "is only for logprobs: true")
        options = options_of(
            body, max_tokens=_max_tokens(body), logprobs=(body.top_logprobs or 0) if body.logprobs else None
        )
        options = dataclasses.replace(
            self._gate.salted(options, key),
            tools=None if body.tool_choice == "none" else body.tools or None,
            chat_template_kwargs=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
        )
        return Request(messages=plain_messages(body.messages), options=options, request_id=call_id)


def _max_tokens(body: ChatBody) -> int | None:
    """max_completion_tokens, or max_tokens by its older name."""
    older, newer = body.max_tokens, body.max_completion_tokens
    if older is not None and newer is not None and older != newer:
        raise refused("max_completion_tokens", f"{newer} is not max_tokens, {older}; give one of them")
    return older if newer is None else newer


class _Answer:
    """What comes back for one call."""

    def __init__(self, call_id: str, card: Card, body: ChatBody, request: Request) -> None:
        self._call_id = call_id
        self._card = card
        self._created = int(time.time())
        self._body = body
        self._request = request
        self._usage = UsageSum()

    async def whole(self, gate: Gate) -> ChatCompletion:
        (completion,) = await generation.complete(gate.client, [self._request])
        choices = sorted(map(self._choice, completion.choices), key=lambda choice: choice["index"])
        return ChatCompletion(
            id=self._call_id,
            object="chat.completion",
            created=self._created,
            model=self._card.name,
            system_fingerprint=self._card.fingerprint,
            choices=choices,
            usage=self._usage.total(),
        )

    def _choice(self, choice: Choice) -> ChatChoice:
        self._usage.add(0, choice.finished.usage)
        made = ChatChoice(
            index=choice.index,
            message=ChatMessage(role="assistant", content=choice.text, refusal=None),
            logprobs=for_chat(choice.logprobs) if self._body.logprobs else None,
            finish_reason=generation.finish_reason(choice.finished, self._request),
            stop_reason=generation.stop_reason(choice.finished, self._request),
        )
        if self._body.return_token_ids:
            made["token_ids"] = list(choice.token_ids)
        return made

    async def stream(self, gate: Gate, exchange: Exchange) -> None:
        with_usage = self._body.stream_options is not None and self._body.stream_options.include_usage
        async with aclosing(generation.events(gate.client, [self._request])) as events:
            async for numbered in events:
                for choice in self._choices(numbered.event):
                    chunk = self._chunk([choice])
                    if with_usage:
                        chunk["usage"] = None
                    await exchange.event(chunk)
        if with_usage:
            last = self._chunk([])
            last["usage"] = self._usage.total()
            await exchange.event(last)
        await exchange.done()

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(
            id=self._call_id,
            object="chat.completion.chunk",
            created=self._created,
            model=self._card.name,
            system_fingerprint=self._card.fingerprint,
            choices=choices,
        )

    def _choices(self, event: Event) -> list[ChatChunkChoice]:
        """The choices of an event, a chunk each."""
        match event:
            case Accepted():
                first = ChatDelta(role="assistant", content="")
                return [self._part(index, first, (), ()) for index in range(self._body.n or 1)]
            case Delta() as delta:
                if not (delta.text or delta.logprobs or self._body.return_token_ids):
                    return []
                content = ChatDelta(content=delta.text)
                return [self._part(delta.index, content, delta.token_ids, delta.logprobs)]
            case Finished() as finished:
                self._usage.add(0, finished.usage)
                last = self._part(finished.index, ChatDelta(), (), ())
                last["finish_reason"] = generation.finish_reason(finished, self._request)
                last["stop_reason"] = generation.stop_reason(finished, self._request)
                return [last]

    def _part(
        self,
        index: int,
        delta: ChatDelta,
        token_ids: Sequence[int],
        positions: Sequence[PositionLogprobs],
    ) -> ChatChunkChoice:
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)
        if self._body.logprobs and positions:
            choice["logprobs"] = for_chat(positions)
        if self._body.return_token_ids:
            choice["token_ids"] = list(token_ids)
        return choice

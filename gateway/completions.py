"""POST /v1/completions: prompts in, texts out, whole or as a stream.

Owns the endpoint's shapes; does not know how a prompt is tokenised. Invariant: choice p * n + i is the i-th
answer to prompt p, and the texts of a stream joined are the text of the whole answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from gateway import generation
from gateway.answering import answer
from gateway.bodies import DEFAULT_COMPLETION_TOKENS, CompletionBody
from gateway.errors import refused
from gateway.exchange import Exchange
from gateway.gate import Gate
from gateway.generation import Numbered, UsageSum
from gateway.logprobs import for_completion
from gateway.model_card import Card
from gateway.parameters import options_of
from gateway.shapes import Completion, CompletionChoice, CompletionLogprobs
from octavo_client.types import Accepted, Delta, Finished, PositionLogprobs, Request


class Completions:
    """The endpoint."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __call__(self, exchange: Exchange) -> None:
        body = await self._gate.parsed(CompletionBody, exchange)

        def begin(call_id: str, card: Card) -> _Answer:
            return _Answer(call_id, card, body, self._requests(body, call_id, exchange.key))

        await answer(self._gate, exchange, body, "cmpl", begin)

    def _requests(self, body: CompletionBody, call_id: str, key: str) -> list[Request]:
        max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        options = self._gate.salted(options_of(body, max_tokens=max_tokens, logprobs=body.logprobs), key)
        prompts = _prompts(body)
        limit = self._gate.settings.max_prompts
        if not 0 < len(prompts) <= limit:
            raise refused("prompt", f"{len(prompts)} prompts, must be 1 to {limit}")
        ids = generation.request_ids(call_id, len(prompts))
        return [
            Request(prompt=prompt, options=options, request_id=request_id)
            if isinstance(prompt, str)
            else Request(token_ids=prompt, options=options, request_id=request_id)
            for prompt, request_id in zip(prompts, ids, strict=True)
        ]


def _prompts(body: CompletionBody) -> Sequence[str | list[int]]:
    """A list of token ids is one prompt; an empty list is none."""
    given: Any = body.prompt
    if isinstance(given, str):
        return [given]
    return [given] if given and isinstance(given[0], int) else given


class _Answer:
    """What comes back for one call."""

    def __init__(self, call_id: str, card: Card, body: CompletionBody, requests: list[Request]) -> None:
        self._body = body
        self._requests = requests
        self._n = body.n or 1
        self._usage = UsageSum()
        self._offsets: dict[int, int] = {}
        self._head = Completion(
            id=call_id,
            object="text_completion",
            created=int(time.time()),
            model=card.name,
            system_fingerprint=card.fingerprint,
            choices=[],
        )

    async def whole(self, gate: Gate) -> Completion:
        completions = await generation.complete(gate.client, self._requests)
        choices = []
        for prompt, completion in enumerate(completions):
            for choice in completion.choices:
                self._usage.add(prompt, choice.finished.usage)
                index = prompt * self._n + choice.index
                made = self._choice(index, choice.text, choice.token_ids, choice.logprobs)
                choices.append(self._ended(made, prompt, choice.finished))
        choices.sort(key=lambda choice: choice["index"])
        return Completion(**{**self._head, "choices": choices, "usage": self._usage.total()})

    async def stream(self, gate: Gate, exchange: Exchange) -> None:
        with_usage = self._body.stream_options is not None and self._body.stream_options.include_usage
        async with aclosing(generation.events(gate.client, self._requests)) as events:
            async for numbered in events:
                choice = self._chunk(numbered)
                if choice is not None:
                    chunk = Completion(**{**self._head, "choices": [choice]})
                    if with_usage:
                        chunk["usage"] = None
                    await exchange.event(chunk)
        if with_usage:
            await exchange.event(Completion(**{**self._head, "usage": self._usage.total()}))
        await exchange.done()

    def _chunk(self, numbered: Numbered) -> CompletionChoice | None:
        """The choice of an event; None when it has nothing to say."""
        match numbered.event:
            case Accepted():
                return None
            case Delta() as delta:
                index = numbered.prompt * self._n + delta.index
                silent = not (delta.text or delta.logprobs or self._body.return_token_ids)
                return None if silent else self._choice(index, delta.text, delta.token_ids, delta.logprobs)
            case Finished() as finished:
                self._usage.add(numbered.prompt, finished.usage)
                choice = self._choice(numbered.prompt * self._n + finished.index, "", (), ())
                return self._ended(choice, numbered.prompt, finished)

    def _choice(
        self, index: int, text: str, token_ids: Sequence[int], positions: Sequence[PositionLogprobs]
    ) -> CompletionChoice:
        choice = CompletionChoice(index=index, text=text, logprobs=None, finish_reason=None)
        if self._body.logprobs is not None:
            choice["logprobs"] = self._logprobs(index, positions)
        if self._body.return_token_ids:
            choice["token_ids"] = list(token_ids)
        return choice

    def _logprobs(self, index: int, positions: Sequence[PositionLogprobs]) -> CompletionLogprobs:
        offset = self._offsets.get(index, 0)
        made = for_completion(positions, offset)
        self._offsets[index] = offset + sum(map(len, made["tokens"]))
        return made

    def _ended(self, choice: CompletionChoice, prompt: int, finished: Finished) -> CompletionChoice:
        choice["finish_reason"] = generation.finish_reason(finished, self._requests[prompt])
        choice["stop_reason"] = generation.stop_reason(finished, self._requests[prompt])
        return choice

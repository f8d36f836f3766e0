"""The requests of one HTTP call: each prompt a request of its own, all of them together one answer.

Owns their ids, their events in one stream, and the sum of their usage; knows no shape of an answer.
Invariant: whatever way a call ends, none of its requests lives on.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from http import HTTPStatus

from gateway.errors import SERVER, ApiError, from_octavo
from gateway.shapes import FinishReason, PromptTokensDetails, Usage
from octavo.errors import InvalidArgument, OctavoError
from octavo_client.aio import AsyncClient
from octavo_client.aio_calls import AsyncStream
from octavo_client.types import Completion, Event, Finished, Request
from octavo_client.types import FinishReason as Reason
from octavo_client.types import Usage as Tokens

GRAMMAR_FAILED = "GRAMMAR_FAILED"
_TOO_MUCH_WORK = "the grammar takes more work for a token than is allowed, or fits no token of this model"
_WAITING_EVENTS = 64
_REASONS: dict[Reason, FinishReason] = {
    Reason.STOP: "stop",
    Reason.LENGTH: "length",
    Reason.KV_POOL: "length",
    Reason.ABORTED: "abort",
}


@dataclass(frozen=True)
class Numbered:
    """An event of the prompt-th request."""

    prompt: int
    event: Event


_Queue = asyncio.Queue[Numbered | OctavoError | None]


def new_id(prefix: str, given: str) -> str:
    """The id of a call, which names its requests at the scheduler; with the client's own in it, if any."""
    own = given if given.isascii() and given.isprintable() and 0 < len(given) <= 64 else secrets.token_hex(12)
    return f"{prefix}-{own}"


def request_ids(call_id: str, count: int) -> list[str]:
    return [call_id] if count == 1 else [f"{call_id}-{number}" for number in range(count)]


async def complete(client: AsyncClient, requests: Sequence[Request]) -> list[Completion]:
    """The whole answers. Raises an OctavoError; the others are cancelled then."""
    tasks = [asyncio.create_task(_once(client, request)) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _once(client: AsyncClient, request: Request) -> Completion:
    return await client.generate(
        request.prompt,
        messages=request.messages,
        token_ids=request.token_ids,
        request_id=request.request_id,
        **vars(request.options),
    )


async def events(client: AsyncClient, requests: Sequence[Request]) -> AsyncGenerator[Numbered, None]:
    """The events of all requests as they come, none before every request has passed the server's checks.

    Raises the first error. Close it to cancel the requests.
    """
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(client.send(request)) for request in requests]
        await asyncio.gather(*(stream.queued() for stream in streams))
        if len(streams) == 1:
            async for event in streams[0]:
                yield Numbered(0, event)
            return
        async with aclosing(_merged(streams)) as merged:
            async for numbered in merged:
                yield numbered


async def _merged(streams: Sequence[AsyncStream]) -> AsyncGenerator[Numbered, None]:
    """Bounded: a reader that is slow holds the requests' own streams back."""
    queue: _Queue = asyncio.Queue(_WAITING_EVENTS)
    tasks = [asyncio.create_task(_forward(number, stream, queue)) for number, stream in enumerate(streams)]
    try:
        ended = 0
        while ended < len(tasks):
            item = await queue.get()
            if isinstance(item, OctavoError):
                raise item
            if item is None:
                ended += 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(number: int, stream: AsyncStream, queue: _Queue) -> None:
    try:
        async for event in stream:
            await queue.put(Numbered(number, event))
    except OctavoError as error:
        await queue.put(error)
    else:
        await queue.put(None)


def finish_reason(finished: Finished, request: Request) -> FinishReason:
    """OpenAI's word. Raises ApiError for a sequence that failed at the worker: 400 if it was the request's
    own grammar, else 500.
    """
    reason = _REASONS.get(finished.reason)
    if reason is not None:
        return reason
    if finished.error_reason == GRAMMAR_FAILED:
        options = request.options
        kinds = {"json_schema": options.json_schema, "regex": options.regex, "ebnf": options.ebnf}
        field = next((f"response_format.{kind}" for kind, given in kinds.items() if given is not None), "")
        raise from_octavo(InvalidArgument(f"{field}: {_TOO_MUCH_WORK}", reason=GRAMMAR_FAILED, field=field))
    why = finished.error_reason or finished.reason.value
    raise ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR, f"the answer failed: {why}", kind=SERVER, code="sequence_failed"
    )


def stop_reason(finished: Finished, request: Request) -> str | int | None:
    """The stop string or the client's own stop token id that matched; None for the model's EOS."""
    if finished.stop is not None:
        return finished.stop
    return finished.stop_token_id if finished.stop_token_id in request.options.stop_token_ids else None


class UsageSum:
    """Adds up a call: each prompt once, the tokens of all its answers."""

    def __init__(self) -> None:
        self._prompts: dict[int, Tokens] = {}
        self._completion_tokens = 0

    def add(self, prompt: int, usage: Tokens) -> None:
        """Of one answer to the prompt-th prompt."""
        self._prompts.setdefault(prompt, usage)
        self._completion_tokens += usage.completion_tokens

    def total(self) -> Usage:
        prompt_tokens = sum(usage.prompt_tokens for usage in self._prompts.values())
        cached = sum(usage.cached_prompt_tokens for usage in self._prompts.values())
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=prompt_tokens + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )

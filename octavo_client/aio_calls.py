"""Calls in progress of the asynchronous client: one request's stream, and a batch of many.

Owns what a caller iterates; knows no channel. Invariant: leaving early ends the call at the server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, Self

import grpc
import grpc.aio

from octavo.interceptors import REQUEST_ID_METADATA
from octavo.v1 import inference_pb2 as pb
from octavo_client import convert, types
from octavo_client.batch import BatchBook, HandedOver
from octavo_client.errors import OctavoError, from_call

Requests = Iterable[types.Request] | AsyncIterable[types.Request]


class AsyncStream:
    """The events of one request, in order, for `async for`; leaving the `async with` early cancels."""

    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self._responses = aiter(call)
        self._target = target

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> types.Event:
        """The next event. Raises StopAsyncIteration after the last, an OctavoError when the call failed."""
        try:
            return convert.from_event(await anext(self._responses))
        except grpc.RpcError as error:
            raise from_call(error, self._target) from None

    async def queued(self) -> None:
        """Waits until the server has checked the request and put it into its queue, before any event.

        Raises an OctavoError when it was refused.
        """
        metadata = await self._call.initial_metadata()
        if not any(key == REQUEST_ID_METADATA for key, _ in metadata or ()):
            code, details = await self._call.code(), await self._call.details()
            trailing = await self._call.trailing_metadata()
            raise from_call(grpc.aio.AioRpcError(code, metadata, trailing, details), self._target)

    def cancel(self) -> None:
        """Ends the request at the server. Safe at any time."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


class AsyncBatch:
    """Many requests on one stream: iterates (request_id, event) pairs of all of them as they come."""

    def __init__(
        self,
        start: Callable[[AsyncIterator[pb.GenerateBatchRequest]], Any],
        requests: Requests,
        target: str,
        limit: int,
    ) -> None:
        self._book = BatchBook(limit)
        self._room = asyncio.Condition()
        self._sending = HandedOver(self.cancel)
        self._ready: deque[tuple[str, types.BatchEvent]] = deque()
        self._target = target
        self._call = start(self._send(requests))
        self._responses = aiter(self._call)

    @property
    def open_ids(self) -> tuple[str, ...]:
        """Requests that were sent and have not ended."""
        return self._book.open_ids

    async def _send(self, requests: Requests) -> AsyncIterator[pb.GenerateBatchRequest]:
        """Waits for room in the window, then hands out the next request."""
        with self._sending:
            async for request in _as_async(requests):
                async with self._room:
                    await self._room.wait_for(lambda: not self._book.full)
                    entered = self._book.opened(request)
                message = self._to_message(entered)
                if message is not None:
                    yield message

    def _to_message(self, request: types.Request) -> pb.GenerateBatchRequest | None:
        """The message; a request that cannot even be sent fails like one that the server refuses."""
        try:
            return pb.GenerateBatchRequest(generate=convert.to_request(request))
        except OctavoError as error:
            failed = types.RequestFailed(error)
            self._book.heard(request.request_id, failed)
            self._ready.append((request.request_id, failed))
            return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, types.BatchEvent]:
        """The next event. Raises what the requests' iterator raised, or the call's failure."""
        try:
            while not self._ready:
                await self._take(await anext(self._responses))
        except StopAsyncIteration:
            if not self._ready:
                raise
        except grpc.RpcError as error:
            raise (self._sending.error or from_call(error, self._target)) from None
        except asyncio.CancelledError:
            if self._sending.error is not None:
                raise self._sending.error from None
            raise
        return self._ready.popleft()

    async def _take(self, response: pb.GenerateBatchResponse) -> None:
        async with self._room:
            for message in response.events:
                event = convert.from_batch_event(message)
                self._book.heard(message.request_id, event)
                self._ready.append((message.request_id, event))
            self._room.notify_all()

    def cancel(self) -> None:
        """Ends every request of the batch at the server."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


async def _as_async(requests: Requests) -> AsyncIterator[types.Request]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request

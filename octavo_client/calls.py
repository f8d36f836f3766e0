"""Calls in progress of the synchronous client: one request's stream, and a batch of many.

Owns what a caller iterates; knows no channel. Invariant: leaving early ends the call at the server.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import grpc

from octavo.v1 import inference_pb2 as pb
from octavo_client import convert, types
from octavo_client.batch import BatchBook, HandedOver
from octavo_client.errors import OctavoError, from_call


class Stream:
    """The events of one request, in order; leaving its `with` early cancels it."""

    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self._target = target

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> types.Event:
        """The next event. Raises StopIteration after the last, an OctavoError when the call failed."""
        try:
            return convert.from_event(next(self._call))
        except grpc.RpcError as error:
            raise from_call(error, self._target) from None

    def cancel(self) -> None:
        """Ends the request at the server. Safe at any time."""
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class Batch:
    """Many requests on one stream: iterates (request_id, event) pairs of all of them as they come."""

    def __init__(
        self, start: Callable[[Iterator[pb.GenerateBatchRequest]], Any], target: str, limit: int
    ) -> None:
        self._book = BatchBook(limit)
        self._changed = threading.Condition()
        self._closed = False
        self._sending = HandedOver(self._cancel_call)
        self._ready: deque[tuple[str, types.BatchEvent]] = deque()
        self._target = target
        self._start = start
        self._call: Any = None

    @property
    def open_ids(self) -> tuple[str, ...]:
        """Requests that were sent and have not ended."""
        with self._changed:
            return self._book.open_ids

    def begin(self, requests: Iterable[types.Request]) -> Self:
        self._call = self._start(self._send(iter(requests)))
        return self

    def _send(self, requests: Iterator[types.Request]) -> Iterator[pb.GenerateBatchRequest]:
        """Runs on gRPC's own thread: waits for room in the window, then hands out the next request."""
        with self._sending:
            for request in requests:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or not self._book.full)
                    if self._closed:
                        return
                    entered = self._book.opened(request)
                message = self._to_message(entered)
                if message is not None:
                    yield message

    def _cancel_call(self) -> None:
        self._call.cancel()

    def _to_message(self, request: types.Request) -> pb.GenerateBatchRequest | None:
        """The message; a request that cannot even be sent fails like one that the server refuses."""
        try:
            return pb.GenerateBatchRequest(generate=convert.to_request(request))
        except OctavoError as error:
            with self._changed:
                failed = types.RequestFailed(error)
                self._book.heard(request.request_id, failed)
                self._ready.append((request.request_id, failed))
            return None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, types.BatchEvent]:
        """The next event. Raises what the requests' iterator raised, or the call's failure."""
        try:
            while not self._ready:
                self._take(next(self._call))
        except StopIteration:
            if not self._ready:
                raise
        except grpc.RpcError as error:
            self.cancel()
            raise (self._sending.error or from_call(error, self._target)) from None
        return self._ready.popleft()

    def _take(self, response: pb.GenerateBatchResponse) -> None:
        with self._changed:
            for message in response.events:
                event = convert.from_batch_event(message)
                self._book.heard(message.request_id, event)
                self._ready.append((message.request_id, event))
            self._changed.notify_all()

    def cancel(self) -> None:
        """Ends every request of the batch at the server."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

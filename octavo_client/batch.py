"""The book of one GenerateBatch call: which requests are in flight, and when the next may be sent.

Owns the window and the ids; knows no transport, sync or async. Invariant: at most `limit` requests are
unanswered at a time.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from types import TracebackType

from octavo_client import types
from octavo_client.errors import AlreadyExists


class HandedOver:
    """A `with` block whose error is kept for the thread or task that reads the answers and raises it there.

    Left where it happens, it would reach the user as nothing but a broken stream.
    """

    def __init__(self, on_error: Callable[[], object]) -> None:
        self._on_error = on_error
        self.error: Exception | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error
        self._on_error()
        return True


class BatchBook:
    """Counts the sequences that are still open for each request of one batch."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: dict[str, int] = {}

    @property
    def open_ids(self) -> tuple[str, ...]:
        """Ids sent and not ended, oldest first."""
        return tuple(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= self.limit

    def opened(self, request: types.Request) -> types.Request:
        """The request with an id, entered in the book. Raises AlreadyExists when the id is in flight here."""
        if not request.request_id:
            request = dataclasses.replace(request, request_id=uuid.uuid4().hex)
        if request.request_id in self._open:
            raise AlreadyExists(
                f"request id {request.request_id!r} is twice in the batch", field="request_id"
            )
        self._open[request.request_id] = request.options.n or 1
        return request

    def heard(self, request_id: str, event: types.BatchEvent) -> bool:
        """Enters an event; True when it ended its request."""
        if request_id not in self._open:
            return False
        if isinstance(event, types.Finished):
            self._open[request_id] -= 1
        elif isinstance(event, types.RequestFailed):
            self._open[request_id] = 0
        if self._open[request_id] > 0:
            return False
        del self._open[request_id]
        return True

"""Outboxes: what one client stream still has to be told, merged, and bounded.

Owns pending events and the backlog rule; knows neither gRPC nor the engine. Invariant: the step loop only
ever appends and never waits, and what a stream holds is bounded, for a stream past its bound fails with
STREAM_BACKLOG and holds nothing.

The backlog rule: deltas that wait for a reader are merged, so a slow reader costs one pending delta a
sequence. A stream whose pending tokens or text pass `BacklogLimits`, or whose reader took nothing for
`stall_seconds` while something was pending, is failed with RESOURCE_EXHAUSTED STREAM_BACKLOG, and its
requests are aborted.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.errors import OctavoError, ResourceExhausted
from octavo.v1 import inference_pb2

_REFUSAL_COST = 256
"""Characters that a refusal counts for."""
_LOGPROB_COST = 16
"""Characters that a token with its log-probability counts for."""


@dataclass(frozen=True, slots=True)
class BacklogLimits:
    """Bounds of one stream: tokens and characters pending, and seconds without a read while something is
    pending.
    """

    tokens: int = 65_536
    characters: int = 1 << 20
    stall_seconds: float = 60.0


@dataclass(slots=True)
class Pending:
    """What one sequence of a request has to say since its stream was last read. Told as accepted, delta, end.

    What concerns the whole request, accepted and error, is said by its first sequence, index 0.
    """

    request_id: str
    index: int = 0
    accepted: inference_pb2.Accepted | None = None
    token_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    logprobs: list[inference_pb2.PositionLogprobs] = field(default_factory=list)
    finished: inference_pb2.Finished | None = None
    error: OctavoError | None = None

    @property
    def has_delta(self) -> bool:
        return bool(self.token_ids or self.text)

    def add(self, later: "Pending") -> None:
        """Takes in what the same sequence said after this."""
        self.accepted = later.accepted or self.accepted
        self.token_ids += later.token_ids
        self.text += later.text
        self.logprobs += later.logprobs
        self.finished = later.finished


class Outbox:
    """The mail of one client stream, which carries one request or many. clock values are seconds, given by
    callers.
    """

    def __init__(self, limits: BacklogLimits) -> None:
        self._limits = limits
        self._pending: dict[tuple[str, int], Pending] = {}
        self._refusals: list[Pending] = []
        self._tokens = 0
        self._characters = 0
        self._waiting_since: float | None = None
        self._wake: asyncio.Future[None] | None = None
        self._woken = False
        self.live: set[str] = set()
        """Ids of the requests that may still speak here."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when the stream breaks the backlog rule, for a reader that is stuck in a write."""
        self.failure: ResourceExhausted | None = None
        """Why the stream has to end, once it broke the backlog rule."""

    def of(self, request_id: str, index: int = 0) -> Pending:
        """The pending events of a sequence, made when there are none. Call `flush` after writing into it."""
        pending = self._pending.get((request_id, index))
        if pending is None:
            pending = self._pending[request_id, index] = Pending(request_id, index)
        return pending

    def put_delta(self, request_id: str, token_ids: Sequence[int], text: str, index: int = 0) -> None:
        """Merges new tokens and text of a sequence into what is pending."""
        pending = self.of(request_id, index)
        pending.token_ids.extend(token_ids)
        self._tokens += len(token_ids)
        if text:
            pending.text.append(text)
            self._characters += len(text)

    def put_logprobs(self, request_id: str, logprobs: inference_pb2.PositionLogprobs, index: int = 0) -> None:
        """Adds those of one token that `put_delta` has put."""
        self.of(request_id, index).logprobs.append(logprobs)
        self._characters += _LOGPROB_COST * (1 + len(logprobs.top))

    def put_refusal(self, request_id: str, error: OctavoError) -> None:
        """Adds the error of a request that was never taken, whose id may be that of another one."""
        self._refusals.append(Pending(request_id, error=error))
        self._characters += _REFUSAL_COST

    def flush(self, now: float) -> bool:
        """Wakes the reader, once for all that was put. False: the stream just broke its bound and holds
        nothing now.
        """
        if self.failure is not None:
            return True
        if self._tokens > self._limits.tokens:
            return self._fail(f"{self._tokens} tokens pending, limit {self._limits.tokens}")
        if self._characters > self._limits.characters:
            return self._fail(f"{self._characters} characters pending, limit {self._limits.characters}")
        if self._waiting_since is None:
            self._waiting_since = now
        self._wake_reader()
        return True

    def check_stall(self, now: float) -> bool:
        """False: the reader took nothing for too long; the stream has failed and holds nothing now."""
        since = self._waiting_since
        if since is None or self.failure is not None or now - since <= self._limits.stall_seconds:
            return True
        return self._fail(f"nothing was read for {self._limits.stall_seconds:g} s")

    def _fail(self, why: str) -> bool:
        self.failure = ResourceExhausted(f"the stream is not read: {why}", reason="STREAM_BACKLOG")
        self._clear()
        self._wake_reader()
        self.on_failure()
        return False

    def _clear(self) -> None:
        self._pending = {}
        self._refusals = []
        self._tokens = self._characters = 0
        self._waiting_since = None

    @property
    def is_empty(self) -> bool:
        return not (self._pending or self._refusals)

    def wake(self) -> None:
        """Lets `next` return, perhaps with nothing."""
        self._woken = True
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def take(self) -> list[Pending]:
        """All that is pending, in the order in which the sequences first spoke. Raises the failure, if there
        is one.
        """
        if self.failure is not None:
            raise self.failure
        taken = [*self._pending.values(), *self._refusals]
        self._clear()
        return taken

    async def next(self) -> list[Pending]:
        """Waits until something is pending, then takes it. For one reader. Raises ResourceExhausted
        (STREAM_BACKLOG).
        """
        while self.is_empty and not self._woken and self.failure is None:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        self._woken = False
        return self.take()

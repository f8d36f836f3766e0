"""Plans on their way to the worker: written in order, one at a time, the first at once.

Owns the queue in front of a step stream; knows no plan's content and no session. Invariant: `put` never
waits, and a write that fails is raised by `run`, once.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Coroutine
from typing import Any

from octavo.worker.v1 import worker_pb2


class LostSessionError(Exception):
    """The session is over; the text says why."""


class PlanSender:
    """Writes to one call; made inside the running loop."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._waiting: deque[worker_pb2.StepPlan] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, plan: worker_pb2.StepPlan) -> None:
        """Sends a plan, before it returns where none is under way and Python can begin a task so. After a
        write has failed nothing more is sent.
        """
        if self._failed.done():
            return
        self._waiting.append(plan)
        if self._writing is None or self._writing.done():
            self._writing = _begun(self._write_all())
            self._writing.add_done_callback(self._over)

    async def run(self) -> None:
        """Raises what a write has failed with. When it is cancelled nothing more is written."""
        try:
            await self._failed
        finally:
            if self._writing is not None:
                self._writing.cancel()

    async def _write_all(self) -> None:
        while self._waiting:
            await write(self._call, worker_pb2.RunRequest(plan=self._waiting.popleft()))

    def _over(self, writing: "asyncio.Task[None]") -> None:
        error = None if writing.cancelled() else writing.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)


def _begun(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """A task that has run to its first wait already, from Python 3.12 on; else it begins in the next turn."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)
    return asyncio.get_running_loop().create_task(work)


async def write(call: Any, message: worker_pb2.RunRequest) -> None:
    """Raises LostSessionError for a stream that has ended: gRPC says so by an InvalidStateError when nobody
    has read its status yet.
    """
    try:
        await call.write(message)
    except asyncio.InvalidStateError as error:
        raise LostSessionError("the worker ended the stream") from error

"""Grammars of live requests, compiled and kept at the worker before a plan names them.

Owns which grammars are in use and the calls that hold them; knows neither requests nor plans. Invariant: a
grammar that `take` has returned for is compiled at the worker that runs steps, for as long as it is in use;
so no step waits for a compilation.
"""

import asyncio
import logging
from collections import Counter
from contextlib import ExitStack
from typing import Any

import grpc
import grpc.aio

from octavo.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    OctavoError,
    ResourceExhausted,
    Unavailable,
)
from octavo.worker.v1 import worker_pb2

_log = logging.getLogger(__name__)
_SHOWN = 200
"""Characters of a complaint that a client is told."""
_LOST = Unavailable("the worker is gone")
"""The answer of a worker that gave none."""


class _Hold:
    """One grammar at one worker. answered: None once it is there, else why it is not."""

    def __init__(self, stub: Any, grammar: str) -> None:
        self.answered: asyncio.Future[OctavoError | None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep(stub, grammar))

    async def _keep(self, stub: Any, grammar: str) -> None:
        call = stub.HoldGrammar(worker_pb2.HoldGrammarRequest(grammar=grammar))
        try:
            answer = await call.read()
            if answer is grpc.aio.EOF:
                self._answer(_LOST)
            else:
                self._answer(InvalidArgument(answer.error) if answer.error else None)
                await call.read()
        except grpc.aio.AioRpcError as error:
            self._answer(_refusal(error))
        finally:
            call.cancel()

    def end(self) -> None:
        self._answer(_LOST)
        self._task.cancel()

    def _answer(self, answer: OctavoError | None) -> None:
        if not self.answered.done():
            self.answered.set_result(answer)


class GrammarHolds:
    """Belongs to the event loop's thread. A stub is that of octavo.worker.v1.WorkerService."""

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()
        self._holds: dict[str, _Hold] = {}
        self._stub: Any = None

    async def take(self, grammar: str, field: str) -> None:
        """Counts one more user, and waits until the worker has compiled the grammar; returns at once without
        a worker, for the next one gets it before its first plan. Call `release` once for each return.

        Raises InvalidArgument (INVALID_GRAMMAR) naming the field, ResourceExhausted (GRAMMAR_BACKLOG),
        FailedPrecondition (NO_GRAMMARS), and Internal.
        """
        self._users[grammar] += 1
        with ExitStack() as undo:
            undo.callback(self.release, grammar)
            await self._compiled(grammar, field)
            undo.pop_all()

    async def _compiled(self, grammar: str, field: str) -> None:
        while self._stub is not None:
            stub = self._stub
            answer = await asyncio.shield(self._hold(grammar).answered)
            if answer is None:
                return
            if answer is not _LOST:
                raise _named(answer, field)
            if self._stub is stub:
                self.disconnected()  # the link has yet to notice

    def release(self, grammar: str) -> None:
        """One user less; a grammar without any is given up."""
        self._users[grammar] -= 1
        if not self._users[grammar]:
            del self._users[grammar]
            hold = self._holds.pop(grammar, None)
            if hold is not None:
                hold.end()

    async def connected(self, stub: Any) -> None:
        """A new worker is there: returns once it has compiled all grammars in use, or has refused them."""
        self.disconnected()
        self._stub = stub
        answers = [self._hold(grammar).answered for grammar in self._users]
        if answers:
            await asyncio.wait(answers)
        refused = sum(answer.result() is not None for answer in answers)
        if refused:
            _log.warning("the worker refused %d of %d grammars in use", refused, len(answers))

    def disconnected(self) -> None:
        """The worker is gone, and with it what it held."""
        self._stub = None
        holds, self._holds = self._holds, {}
        for hold in holds.values():
            hold.end()

    def _hold(self, grammar: str) -> _Hold:
        hold = self._holds.get(grammar)
        if hold is None:
            hold = self._holds[grammar] = _Hold(self._stub, grammar)
        return hold


def _refusal(error: grpc.aio.AioRpcError) -> OctavoError:
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return _LOST
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return ResourceExhausted(error.details() or "", reason="GRAMMAR_BACKLOG", retry_after=1.0)
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        return FailedPrecondition(error.details() or "", reason="NO_GRAMMARS")
    _log.error("a grammar could not be held: %s: %s", error.code().name, error.details())
    return Internal("the worker could not take the grammar")


def _named(answer: OctavoError, field: str) -> OctavoError:
    """The error of one request, for the answer may be that of several."""
    if isinstance(answer, InvalidArgument):
        line = " ".join(answer.message.split())[:_SHOWN]
        return InvalidArgument(f"{field}: {line}", reason="INVALID_GRAMMAR", field=field)
    message = f"{field}: {answer.message.removeprefix('grammar: ')}"
    return type(answer)(message, reason=answer.reason, field=field, retry_after=answer.retry_after)

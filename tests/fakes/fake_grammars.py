"""The HoldGrammar calls of a fake worker, which compiles nothing.

Owns which calls are open and when they are answered; knows no plan. Invariant: a call is in `held` from its
arrival to its end.
"""

import asyncio
from collections.abc import AsyncIterator

from octavo.errors import FailedPrecondition, ResourceExhausted
from octavo.worker.v1 import worker_pb2


class FakeGrammars:
    """compiles: calls are answered while it is set. error: what they are answered. full: no more are taken.
    none: why none can be followed. held: the grammars of the open calls, answered or not.
    """

    def __init__(self) -> None:
        self.compiles = asyncio.Event()
        self.compiles.set()
        self.error = ""
        self.full = False
        self.none = ""
        self.held: list[str] = []

    async def hold(self, grammar: str) -> AsyncIterator[worker_pb2.HoldGrammarResponse]:
        if self.full:
            raise ResourceExhausted(
                "grammar: 9 characters of grammars would be live, limit 8", reason="GRAMMAR_BACKLOG"
            )
        if self.none:
            raise FailedPrecondition(f"grammar: cannot be followed: {self.none}", reason="NO_GRAMMARS")
        self.held.append(grammar)
        try:
            await self.compiles.wait()
            yield worker_pb2.HoldGrammarResponse(error=self.error)
            await asyncio.get_running_loop().create_future()
        finally:
            self.held.remove(grammar)

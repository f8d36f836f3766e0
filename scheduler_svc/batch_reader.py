"""The requests of a GenerateBatch stream, as they arrive.

Owns the order in which they are taken in; knows no answer. Invariant: a request waits for nobody's grammar
but its own, and an abort that follows a request on the stream finds it, taken in or not.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

from octavo.errors import OctavoError
from octavo.v1 import inference_pb2
from scheduler_svc.engine import Engine
from scheduler_svc.intake import Intake
from scheduler_svc.streams import Outbox

_CONCURRENT = 64
"""Requests with a grammar that are taken in at once; the stream is not read on while there are more."""


class BatchReader:
    """Of one stream. clock: the engine's."""

    def __init__(self, engine: Engine, intake: Intake, outbox: Outbox, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._intake = intake
        self._outbox = outbox
        self._clock = clock
        self._free = asyncio.Semaphore(_CONCURRENT)
        self._on_the_way: Counter[str] = Counter()
        self._aborted: set[str] = set()

    async def read(self, requests: AsyncIterator[inference_pb2.GenerateBatchRequest]) -> None:
        """Takes requests in until the client has sent its last."""
        try:
            async with asyncio.TaskGroup() as beside:
                async for message in requests:
                    if message.WhichOneof("action") == "abort_request_id":
                        await self._abort(message.abort_request_id)
                    elif not message.generate.HasField("response_format"):
                        await self._take(message.generate)
                    else:
                        await self._free.acquire()
                        self._on_the_way[message.generate.request_id] += 1
                        beside.create_task(self._take_beside(message.generate))
        finally:
            self._outbox.wake()

    async def _take(self, request: inference_pb2.GenerateRequest) -> bool:
        """False: it was refused, and its client told so."""
        request_id = request.request_id
        try:
            await self._intake.take(request, self._outbox)
        except OctavoError as error:
            self._outbox.put_refusal(request_id, error)
            self._outbox.flush(self._clock())
            return False
        return True

    async def _take_beside(self, request: inference_pb2.GenerateRequest) -> None:
        request_id = request.request_id
        try:
            taken = await self._take(request)
            if taken and request_id in self._aborted:
                await self._engine.abort([request_id])
        finally:
            self._free.release()
            self._on_the_way[request_id] -= 1
            if not self._on_the_way[request_id]:
                del self._on_the_way[request_id]
                self._aborted.discard(request_id)

    async def _abort(self, request_id: str) -> None:
        if request_id in self._outbox.live:
            await self._engine.abort([request_id])
        elif request_id and request_id in self._on_the_way:
            self._aborted.add(request_id)

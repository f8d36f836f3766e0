"""The worker's gRPC service: the handshake, the step stream, health and reflection.

Owns streams and sessions' beginnings and ends; knows no tensor. Invariant: a plan is taken off the wire
while another one runs; the reader launches it only where nothing else is to be done and a launch is short.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from llguidance import LLMatcher

from gpu_worker.errors import NoGrammarsError, WorkerError
from gpu_worker.grammars import GrammarCompiler
from gpu_worker.step_loop import Session, StepLoop
from octavo import handshake, transport
from octavo.binding import bind
from octavo.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, StaleEpoch, Unavailable
from octavo.interceptors import ErrorMapping
from octavo.logging import epoch_text
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

_log = logging.getLogger(__name__)
SERVICE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]
_Outbox = asyncio.Queue[worker_pb2.RunResponse | Exception | None]


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """GetCapacity, Run and HoldGrammar. Until `ready` all refuse with UNAVAILABLE (LOADING)."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._capacity: worker_pb2.GetCapacityResponse | None = None
        self._loop: StepLoop | None = None
        self._grammars: GrammarCompiler | None = None
        self._outboxes: dict[int, _Outbox] = {}

    def ready(
        self,
        capacity: worker_pb2.GetCapacityResponse,
        loop: StepLoop,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """From now on the worker answers; the capacity gets this worker's epoch. grammars None: none can be
        followed.
        """
        capacity.worker_epoch = self._epoch
        self._capacity, self._loop, self._grammars = capacity, loop, grammars

    async def GetCapacity(  # noqa: N802
        self, request: worker_pb2.GetCapacityRequest, context: Context
    ) -> worker_pb2.GetCapacityResponse:
        if self._capacity is None:
            raise _loading()
        return self._capacity

    async def Run(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.RunRequest], context: Context
    ) -> AsyncIterator[worker_pb2.RunResponse]:
        if self._loop is None:
            raise _loading()
        accepted = await self._handshake(request_iterator)
        outbox: _Outbox = asyncio.Queue()
        session = await self._open(self._loop, accepted.session_id, outbox)
        yield worker_pb2.RunResponse(accepted=accepted)
        reader = asyncio.create_task(self._read(self._loop, session, request_iterator, outbox))
        reader.add_done_callback(partial(_pass_on, outbox))
        try:
            while (item := await outbox.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        except asyncio.CancelledError:
            if not context.cancelled():
                raise
        finally:
            reader.cancel()
            self._outboxes.pop(session.session_id, None)
            self._loop.close(session)
            _log.info("session %s ended", epoch_text(session.session_id))

    async def HoldGrammar(  # noqa: N802
        self, request: worker_pb2.HoldGrammarRequest, context: Context
    ) -> AsyncIterator[worker_pb2.HoldGrammarResponse]:
        if self._loop is None:
            raise _loading()
        if self._grammars is None:
            raise _no_grammars("this worker has no tokenizer, or its model no EOS token")
        compiled = self._grammars.hold(request.grammar)
        try:
            yield worker_pb2.HoldGrammarResponse(error=await _complaint(compiled))
            await asyncio.get_running_loop().create_future()  # until the scheduler ends the call
        except asyncio.CancelledError:
            if not context.cancelled():
                raise
        finally:
            self._grammars.release(request.grammar)

    async def _handshake(self, requests: AsyncIterator[worker_pb2.RunRequest]) -> worker_pb2.SessionAccepted:
        first = await anext(requests, None)
        if first is None or first.WhichOneof("message") != "hello":
            raise InvalidArgument("message: the first one of a stream must be hello", field="message")
        accepted = handshake.accept(first.hello, self._epoch)
        if accepted.session_id in self._outboxes or not accepted.session_id:
            raise InvalidArgument("session_id: zero, or that of a session which is open", field="session_id")
        return accepted

    async def _open(self, loop: StepLoop, session_id: int, outbox: _Outbox) -> Session:
        """Opens a session and waits until the device is free of older steps; the replaced stream is ended."""
        events, opened = asyncio.get_running_loop(), asyncio.Event()
        session = Session(
            session_id=session_id,
            answer=lambda response: _from_thread(events, outbox.put_nowait, response),
            opened=lambda: _from_thread(events, opened.set),
            finished=lambda: _from_thread(events, outbox.put_nowait, None),
        )
        self._outboxes[session_id] = outbox
        replaced = loop.open(session)
        if replaced is not None and replaced.session_id in self._outboxes:
            self._outboxes[replaced.session_id].put_nowait(StaleEpoch("a newer session has taken over"))
        try:
            await opened.wait()
        except asyncio.CancelledError:
            self._outboxes.pop(session_id, None)
            loop.close(session)
            raise
        _log.info("session %s accepted", epoch_text(session_id))
        return session

    @staticmethod
    async def _read(
        loop: StepLoop, session: Session, requests: AsyncIterator[worker_pb2.RunRequest], outbox: _Outbox
    ) -> None:
        async for request in requests:
            if request.WhichOneof("message") != "plan":
                outbox.put_nowait(
                    InvalidArgument("message: only plans may follow the hello", field="message")
                )
                return
            try:
                loop.submit(session, request.plan)
            except ResourceExhausted as error:
                outbox.put_nowait(error)
                return
        loop.finish(session)


def _pass_on(outbox: _Outbox, reader: "asyncio.Task[None]") -> None:
    """What a reader has failed with ends its stream."""
    error = None if reader.cancelled() else reader.exception()
    if isinstance(error, Exception):
        outbox.put_nowait(error)


async def _complaint(compiled: "Future[LLMatcher]") -> str:
    """Why a grammar cannot be followed; empty when it can. Cancelling the wait leaves the compilation be.
    Raises FailedPrecondition (NO_GRAMMARS) where none can.
    """
    done = asyncio.wrap_future(compiled)
    await asyncio.wait([done])
    error = done.exception()
    if isinstance(error, NoGrammarsError):
        raise _no_grammars(str(error))
    if error is not None:
        raise error
    return done.result().get_error()


def _no_grammars(why: str) -> FailedPrecondition:
    return FailedPrecondition(f"grammar: cannot be followed: {why}", reason="NO_GRAMMARS", field="grammar")


def _from_thread(events: asyncio.AbstractEventLoop, call: Any, *arguments: Any) -> None:
    """Schedules a call on the event loop; a loop that has closed needs no answer any more."""
    if not events.is_closed():
        events.call_soon_threadsafe(call, *arguments)


def _loading() -> Unavailable:
    return Unavailable("the worker is loading its model", reason="LOADING", retry_after=1.0)


class WorkerServer:
    """The listening server. Liveness ("") is SERVING at once, the service once `set_serving(True)` is
    called.
    """

    def __init__(self, servicer: WorkerServicer, max_plan_bytes: int, max_result_bytes: int) -> None:
        options = transport.server_options(max_plan_bytes, max_result_bytes)
        self._server = grpc.aio.server(interceptors=[ErrorMapping()], options=options)
        self._health = health.aio.HealthServicer()
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, listen: str) -> str:
        """Binds and serves; returns the address with the port that was taken. Raises WorkerError."""
        try:
            port = bind(self._server, listen)
        except OSError as error:
            raise WorkerError(f"--listen {listen}: {error}") from error
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        await self.set_serving(False)
        await self._server.start()
        return transport.bound_address(listen, port)

    async def set_serving(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self._health.set(SERVICE, status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, grace: float) -> None:
        """Readiness off first; streams get `grace` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)

"""The link to the worker: connects, shakes hands, keeps a session alive, and says when it is lost.

Owns the channel, the liveness check, the step deadline and the reconnects; knows no plan's content and makes
no decision about sequences. Invariant: a listener hears `worker_ready` and `worker_lost` in turn, and
results only between the two.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo import handshake, transport
from octavo.errors import OctavoError, reason_of
from octavo.logging import epoch_text
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from scheduler_svc.grammar_holds import GrammarHolds
from scheduler_svc.plan_sender import LostSessionError, PlanSender, write
from scheduler_svc.rivalry import Rivalry
from scheduler_svc.session import Answer, Session

if TYPE_CHECKING:
    from scheduler_svc.tracing import StepTracer

_log = logging.getLogger(__name__)
_PROBE_MESSAGE_BYTES = 4 * transport.MIB
_FIRST_BACKOFF = 0.1
_LAST_BACKOFF = 1.0
_LOADING_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """step_seconds: the longest a step may take. liveness_seconds: the longest silence of a live worker.
    connect_seconds: for GetCapacity and the handshake. max_batch_*: the scheduler's own limits, for message
    sizes. needs_host_tier: a worker without host blocks is of no use.
    """

    address: str
    step_seconds: float = 120.0
    liveness_seconds: float = 4.0
    connect_seconds: float = 5.0
    max_batch_tokens: int = 2048
    max_batch_seqs: int = 256
    needs_host_tier: bool = False


class LinkListener(Protocol):
    """Who hears of the worker. All calls come from the event loop and return at once."""

    def worker_ready(self, session: Session, capacity: worker_pb2.GetCapacityResponse) -> None: ...
    def worker_lost(self, session: Session, reason: str) -> None: ...
    def worker_answered(self, session: Session, answers: list[Answer]) -> None: ...
    def worker_oddity(self, kind: str) -> None: ...


class WorkerClient:
    """Keeps one session with a worker for as long as `run` runs. clock: seconds, monotonic.

    grammars: what the worker has to hold. trace_steps: makes the tracer of a session's steps from the
    worker's epoch; None: nothing is traced.
    """

    def __init__(
        self,
        settings: LinkSettings,
        listener: LinkListener,
        clock: Callable[[], float],
        grammars: GrammarHolds | None = None,
        trace_steps: "Callable[[int], StepTracer] | None" = None,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._clock = clock
        self._grammars = grammars or GrammarHolds()
        self._trace_steps = trace_steps
        self._reset = asyncio.Event()
        self._reset_reason = ""
        self._last_sign = self._session_began = 0.0
        self._rivalry = Rivalry()
        self._had_session = False
        self._ever_had_session = False

    async def run(self) -> None:
        """Connects again and again, with growing pauses; ends only by cancellation.

        A worker that answers LOADING is asked again soon: every pause longer than its loading delays a start.
        """
        backoff = _FIRST_BACKOFF
        last_failure = ""
        while True:
            self._had_session = is_loading = taken_over = False
            try:
                await self._connect_and_serve()
            except (LostSessionError, OctavoError, grpc.aio.AioRpcError, TimeoutError, OSError) as error:
                failure = _describe(error)
                if failure != last_failure and not self._had_session:  # a lost session has been told
                    self._say_absent(error, failure)
                last_failure = failure
                reason = reason_of(error) if isinstance(error, grpc.aio.AioRpcError) else ""
                is_loading, taken_over = reason == "LOADING", reason == "STALE_EPOCH"
            if self._had_session:
                backoff, last_failure, self._ever_had_session = _FIRST_BACKOFF, "", True
                await self._yield_to_rivals(taken_over)
            await asyncio.sleep(_LOADING_PAUSE if is_loading else backoff)
            backoff = _FIRST_BACKOFF if is_loading else min(backoff * 2, _LAST_BACKOFF)

    async def _yield_to_rivals(self, taken_over: bool) -> None:
        pause = self._rivalry.ended(taken_over, self._clock() - self._session_began)
        if self._rivalry.has_begun:
            _log.warning(
                "another scheduler takes the worker at %s from this one: give each a worker of its own",
                self._settings.address,
            )
        await asyncio.sleep(pause)

    def _say_absent(self, error: Exception, failure: str) -> None:
        """A worker that has yet to come is no trouble: it loads its model for longer than this service."""
        unavailable = isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAVAILABLE
        if unavailable and not self._ever_had_session:
            why = "nobody listens there yet" if "failed to connect" in failure else failure
            _log.info("waiting for the worker at %s: %s", self._settings.address, why)
        else:
            _log.warning("no session with the worker at %s: %s", self._settings.address, failure)

    def reset(self, reason: str) -> None:
        """Ends the present session; a new one follows at once."""
        self._reset_reason = reason
        self._reset.set()

    async def _connect_and_serve(self) -> None:
        capacity = await self._ask_capacity()
        settings = self._settings
        options = transport.client_options(
            max_receive=transport.result_bytes_bound(capacity.max_batch_seqs, capacity.max_batch_tokens),
            max_send=transport.plan_bytes_bound(
                max(capacity.max_batch_tokens, settings.max_batch_tokens),
                max(capacity.max_batch_seqs, settings.max_batch_seqs),
                capacity.max_model_len,
                capacity.block_size,
                capacity.num_blocks,
            ),
        )
        async with grpc.aio.insecure_channel(settings.address, options=options) as channel:
            call = _stub(channel).Run()
            try:
                session = await self._open(call, capacity)
                async with asyncio.timeout(settings.step_seconds):
                    await self._grammars.connected(_stub(channel))
                await self._serve(session, call, capacity, health_pb2_grpc.HealthStub(channel))
            finally:
                self._grammars.disconnected()
                call.cancel()

    async def _ask_capacity(self) -> worker_pb2.GetCapacityResponse:
        options = transport.client_options(_PROBE_MESSAGE_BYTES)
        async with grpc.aio.insecure_channel(self._settings.address, options=options) as channel:
            capacity: worker_pb2.GetCapacityResponse = await _stub(channel).GetCapacity(
                worker_pb2.GetCapacityRequest(), timeout=self._settings.connect_seconds
            )
        handshake.check_version(capacity.protocol_version, "worker")
        if not (capacity.num_blocks and capacity.block_size):
            raise LostSessionError(f"capacity: {capacity.num_blocks} blocks of {capacity.block_size} tokens")
        if capacity.num_blocks * capacity.block_size >= 1 << 31:
            raise LostSessionError(
                f"capacity: {capacity.num_blocks} x {capacity.block_size} slots pass int32"
            )
        if self._settings.needs_host_tier and not capacity.num_host_blocks:
            raise LostSessionError(
                "num_host_blocks: 0, but --preemption swap needs at least 1; "
                "start the worker with --swap-space, or the scheduler with --preemption auto"
            )
        return capacity

    async def _open(self, call: Any, capacity: worker_pb2.GetCapacityResponse) -> Session:
        """The handshake. A worker still busy with an old session may take as long as one step to answer."""
        session_id = handshake.random_id()
        async with asyncio.timeout(self._settings.step_seconds):
            hello = handshake.hello(session_id, capacity.worker_epoch)
            await write(call, worker_pb2.RunRequest(hello=hello))
            first = await call.read()
        if first is grpc.aio.EOF or not first.HasField("accepted"):
            raise LostSessionError("the worker did not answer the handshake")
        handshake.check_accepted(first.accepted, session_id, capacity.worker_epoch)
        self._sender = PlanSender(call)
        return Session(
            session_id,
            capacity.worker_epoch,
            capacity.vocab_size,
            self._sender.put,
            self._listener.worker_oddity,
            None if self._trace_steps is None else self._trace_steps(capacity.worker_epoch),
        )

    async def _serve(
        self,
        session: Session,
        call: Any,
        capacity: worker_pb2.GetCapacityResponse,
        health: health_pb2_grpc.HealthStub,
    ) -> None:
        """Runs the session until one of its tasks says why it is over."""
        self._reset.clear()
        self._last_sign = self._session_began = self._clock()
        self._had_session = True
        ids = {"session_id": epoch_text(session.session_id), "epoch": epoch_text(session.epoch)}
        _log.info("session with the worker at %s", self._settings.address, extra=ids)
        self._listener.worker_ready(session, capacity)
        tasks = [
            asyncio.create_task(self._sender.run()),
            asyncio.create_task(self._receive(session, call)),
            asyncio.create_task(self._watch(session, health)),
            asyncio.create_task(self._await_reset()),
        ]
        reason = "cancelled"
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = next(iter(done)).exception()
            reason = _describe(error) if error is not None else "ended"
            if error is not None:
                raise error
        finally:
            session.close(self._clock())
            self._listener.worker_lost(session, reason)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, session: Session, call: Any) -> None:
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:
                raise LostSessionError("the worker ended the stream")
            now = self._clock()
            self._last_sign = now
            if not message.HasField("result"):
                self._listener.worker_oddity("unexpected_message")
                continue
            answers = session.take(message.result, now)
            if answers:
                self._listener.worker_answered(session, answers)

    async def _watch(self, session: Session, health: health_pb2_grpc.HealthStub) -> None:
        """Raises LostSessionError for a silent worker or a step past its deadline. Health is answered by
        another thread of the worker than the one that computes, so a long step is no silence.
        """
        settings = self._settings
        period = min(1.0, settings.liveness_seconds / 4)
        before = self._clock()
        while True:
            await asyncio.sleep(period)
            now = self._clock()
            if now - before > settings.liveness_seconds / 2 + 2 * period:
                self._last_sign = now  # this process itself stood still: that says nothing of the worker
            before = now
            left = self._last_sign + settings.liveness_seconds - now
            if left <= 0:
                raise LostSessionError(f"the worker is silent for {settings.liveness_seconds:g} s")
            sent_at = session.oldest_sent_at()
            if sent_at is not None and now - sent_at > settings.step_seconds:
                raise LostSessionError(f"a step took longer than {settings.step_seconds:g} s")
            if await self._answers_health(health, min(left, settings.liveness_seconds / 2)):
                self._last_sign = self._clock()

    async def _answers_health(self, health: health_pb2_grpc.HealthStub, seconds: float) -> bool:
        """Whether the worker says anything at all; a worker without the health service counts as alive."""
        try:
            await health.Check(health_pb2.HealthCheckRequest(), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            return error.code() == grpc.StatusCode.UNIMPLEMENTED
        return True

    async def _await_reset(self) -> None:
        await self._reset.wait()
        raise LostSessionError(self._reset_reason)


def _stub(channel: grpc.aio.Channel) -> Any:
    make: Any = worker_pb2_grpc.WorkerServiceStub
    return make(channel)


def _describe(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__

"""The engine: the only task that calls the core.

Owns the order of things - inputs, plans, then delivery - and the timers; knows neither gRPC methods nor
texts. Invariant: a turn never waits for a client, every input reaches the core in the order of its arrival,
and the next plan has left before tokens are handed out.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from octavo.errors import OctavoError
from octavo.logging import epoch_text
from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.inputs import Inputs, Observer, worker_lost
from scheduler_svc.invariant_watch import InvariantWatch
from scheduler_svc.kv_stream import KvEvents
from scheduler_svc.metrics import ShellMetrics
from scheduler_svc.requests import Branch, QueueLimits, Record, Requests, queue_timeout
from scheduler_svc.session import Answer, Session
from scheduler_svc.streams import Outbox
from scheduler_svc.timers import Alarm

_log = logging.getLogger(__name__)
_SWEEP_SECONDS = 1.0
_COVERING_STEPS = 2
_SHORT_STEP_SECONDS = 2e-3
"""Two steps in flight hide the way to the worker and back, unless they are shorter than it."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """grace_seconds: how long requests outlive their worker. queue: bounds on what waits. kv_readers: of
    WatchKvEvents at once. check_invariants: every-step, idle or off.
    """

    grace_seconds: float = 60.0
    queue: QueueLimits = field(default_factory=QueueLimits)
    kv_readers: int = 16
    check_invariants: str = "idle"


class Engine:
    """Runs the core. All methods but `run` return at once or wait for one turn, and belong to the loop's
    thread.

    clock: seconds, monotonic. readiness: called with whether steps can run, at each change.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        settings: EngineSettings,
        metrics: ShellMetrics,
        clock: Callable[[], float],
        readiness: Callable[[bool], None],
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._requests = Requests(settings.queue)
        watch = InvariantWatch(metrics, settings.check_invariants)
        self._inputs = Inputs(scheduler, self._requests, metrics, readiness, clock(), watch)
        self._wake = asyncio.Event()
        self._alarm = Alarm(clock, self._wake.set)
        self._outboxes: set[Outbox] = set()
        self._next_sweep = 0.0
        self._inbox: deque[Callable[[float], None]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self.kv_events = KvEvents(settings.kv_readers)

    # ---- what the server calls

    @property
    def ready(self) -> bool:
        """Whether a worker is there and steps can run."""
        return self._inputs.session is not None

    @property
    def worker(self) -> worker_pb2.GetCapacityResponse | None:
        """What the latest worker said of itself; None before the first."""
        return self._inputs.worker

    @property
    def num_sessions(self) -> int:
        """Sessions begun so far."""
        return self._metrics.sessions

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def find(self, request_id: str) -> Record | None:
        """The live request of an id."""
        return self._requests.by_id(request_id)

    def observe(self, observer: Observer | None) -> None:
        """From the next input on, tells the observer of plans and notices; None tells nobody."""
        self._inputs.observer = observer

    def name_of(self, seq_id: int) -> str:
        """The request id of a live sequence, with its number where the request has several; else empty."""
        branch = self._requests.by_seq(seq_id)
        if branch is None:
            return ""
        several = f"#{branch.index}" if len(branch.record.branches) > 1 else ""
        return branch.record.request_id + several

    def find_sequence(self, seq_id: int) -> Branch | None:
        """A live sequence."""
        return self._requests.by_seq(seq_id)

    def open(self, outbox: Outbox) -> None:
        """A client stream begins; its backlog is watched from now on."""
        self._outboxes.add(outbox)

    def close(self, outbox: Outbox, outcome: str) -> None:
        """A client stream is over; requests of it that still live are aborted under this outcome."""
        self._outboxes.discard(outbox)
        if outbox.live:
            self._post(partial(self._inputs.drop_stream, outbox, outcome))

    def submit(self, record: Record) -> None:
        """Takes a request. Raises AlreadyExists, ResourceExhausted (QUEUE_FULL), Unavailable (WORKER_LOST).

        While a worker is away requests are queued; not before the first worker, nor after the grace period.
        """
        if not self.ready and (self.worker is None or self._grace_is_over(self._clock())):
            raise worker_lost("no worker is there")
        self._requests.add(record)
        self._post(partial(self._inputs.add, record))

    async def let_plans_leave(self) -> None:
        """Gives way to the engine's turn, and to the link that puts its plan on the wire."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def abort(self, request_ids: Iterable[str]) -> list[str]:
        """Ends requests; the ids that were live. When it returns, their streams have been told all they will
        be.
        """
        done: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._post(partial(self._inputs.abort, tuple(request_ids), done))
        return await done

    async def flush_prefix_cache(self, namespace: str | None) -> int:
        """Forgets what is cached, of one namespace or of all; returns how many blocks."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._post(partial(self._inputs.flush_prefix_cache, namespace, done))
        return await done

    async def ask(self, question: Callable[[Scheduler], T]) -> T:
        """The answer of the core to a question that changes nothing, put between two inputs.

        An exception of the question goes to the asker, not to the engine.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def put(now: float) -> None:
            if done.done():
                return
            try:
                done.set_result(question(self._inputs.core))
            except (LookupError, OctavoError) as error:
                done.set_exception(error)

        self._post(put)
        return await done

    async def idle(self) -> None:
        """Waits until no request lives."""
        if len(self._requests):
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def end_all(self, error: OctavoError, outcome: str) -> None:
        """Ends every live request with an error."""

        def end(now: float) -> None:
            for record in self._requests.all():
                self._inputs.end(record, error, outcome, now)

        self._post(end)

    # ---- what the worker's link calls

    def on_reset(self, reset: Callable[[str], None]) -> None:
        """Names the function that ends the worker's session."""
        self._inputs.reset_worker = reset

    def worker_ready(self, session: Session, capacity: worker_pb2.GetCapacityResponse) -> None:
        self._post(partial(self._inputs.worker_ready, session, capacity))

    def worker_lost(self, session: Session, reason: str) -> None:
        self._post(partial(self._inputs.worker_lost, session, reason))

    def worker_answered(self, session: Session, answers: list[Answer]) -> None:
        self._post(partial(self._inputs.answered, session, answers))

    def worker_oddity(self, kind: str) -> None:
        self._metrics.oddities[kind] += 1

    # ---- the loop

    async def run(self) -> None:
        """Turns for ever; ends only by cancellation. An exception here is a bug, and the service must not go
        on.
        """
        while True:
            self._wake.clear()
            now = self._clock()
            self._take_inputs(now)
            await self._send_plans(now)
            self._hand_out(self._clock())
            if self.kv_events.following:
                self.kv_events.collect(self._inputs.core, now)
            if not self._inbox:
                self._alarm.set(self._next_alarm())
                await self._wake.wait()

    def _post(self, command: Callable[[float], None]) -> None:
        self._inbox.append(command)
        self._wake.set()

    def _take_inputs(self, now: float) -> None:
        while self._inbox:
            self._inbox.popleft()(now)
        for record in self._inputs.deadlines.due(now):
            self._inputs.end(record, queue_timeout(), "queue_timeout", now)
        if not self.ready and len(self._requests) and self._grace_is_over(now):
            self._inputs.end_waiting_for_worker(now)
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_SECONDS
            self._drop([outbox for outbox in self._outboxes if not outbox.check_stall(now)])

    def _next_alarm(self) -> float | None:
        times = [self._inputs.deadlines.next()]
        if not self.ready and len(self._requests):
            times.append(self._inputs.lost_at + self._settings.grace_seconds)
        if self._outboxes:
            times.append(self._next_sweep)
        return min((time for time in times if time is not None), default=None)

    async def _send_plans(self, now: float) -> None:
        """Plans and sends until the core has enough in flight; each plan is on the wire before the next is
        thought of.
        """
        while True:
            if not self._send_plan(now):
                return
            await asyncio.sleep(0)

    def _send_plan(self, now: float) -> bool:
        """Plans and sends a step. False when the core has enough in flight, or nothing to do."""
        session = self._inputs.session
        if session is None or session.closed or not self._may_send(session):
            return False
        started = self._clock()
        plan = self._inputs.plan(now)
        if plan is None:
            return False
        took = self._clock() - started
        self._metrics.step_sent(plan, took, session.send(plan, now))
        if _log.isEnabledFor(logging.DEBUG):
            ids = {"step_id": plan.step_id, "epoch": epoch_text(session.epoch)}
            _log.debug("step of %d rows, %d tokens", plan.rows.size, plan.input_ids.size, extra=ids)
        return True

    def _may_send(self, session: Session) -> bool:
        """The core's depth bounds what is in flight; here, only short steps go beyond what covers the way."""
        return session.num_in_flight < _COVERING_STEPS or self._inputs.step_seconds < _SHORT_STEP_SECONDS

    def _hand_out(self, now: float) -> None:
        """Delivers all bundles and wakes each stream once; a stop string found on the way goes to the core
        at once.
        """
        inputs, delivery = self._inputs, self._inputs.delivery
        while inputs.bundles:
            delivery.deliver(inputs.bundles.popleft(), now)
            if delivery.stops and inputs.stop_matched(now):
                self._wake.set()
        touched, delivery.touched = delivery.touched, {}
        self._drop([outbox for outbox in touched.values() if not outbox.flush(now)])
        acknowledge, inputs.after_delivery = inputs.after_delivery, []
        for call in acknowledge:
            call()
        if not len(self._requests):
            inputs.audit(now)
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)

    def _drop(self, outboxes: list[Outbox]) -> None:
        for outbox in outboxes:
            _log.warning("stream dropped: %s", outbox.failure)
            self._post(partial(self._inputs.drop_stream, outbox, "stream_backlog"))

    def _grace_is_over(self, now: float) -> bool:
        return now - self._inputs.lost_at >= self._settings.grace_seconds

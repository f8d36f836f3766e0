"""The inputs of the core: each thing that can happen, and what it means for sequences and requests.

Owns the calls into the core and the life of requests across workers; knows neither the loop's order nor
timers. Invariant: after every input the core's notices are collected, so that bundles hold what it said in
the order in which it said it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from octavo.errors import FailedPrecondition, OctavoError, Unavailable
from octavo.logging import epoch_text
from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.plan import Capacity, Epoch, FinishReason, Notices, StepPlan, TokenEvents
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.delivery import Bundle, Delivery
from scheduler_svc.invariant_watch import InvariantWatch
from scheduler_svc.logprobs import StepLogprobs
from scheduler_svc.metrics import ShellMetrics
from scheduler_svc.requests import Record, Requests
from scheduler_svc.session import Answer, Session
from scheduler_svc.streams import Outbox
from scheduler_svc.timers import QueueDeadlines

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 1.0


class Observer(Protocol):
    """Is told what happens, in the loop's thread; must return at once."""

    def planned(self, plan: StepPlan) -> None:
        """The core made a plan."""

    def noticed(self, notices: Notices) -> None:
        """Sequences were admitted or ended."""


class Inputs:
    """Applies inputs to the core. now: seconds of the engine's clock."""

    def __init__(
        self,
        core: Scheduler,
        requests: Requests,
        metrics: ShellMetrics,
        readiness: Callable[[bool], None],
        now: float,
        watch: InvariantWatch,
    ) -> None:
        self.core = core
        self._watch = watch
        self.requests = requests
        self.delivery = Delivery(requests, metrics)
        self.deadlines = QueueDeadlines()
        self.bundles: deque[Bundle] = deque()
        self.after_delivery: list[Callable[[], None]] = []
        """To be called once the bundles so far have been delivered."""
        self.session: Session | None = None
        self.worker: worker_pb2.GetCapacityResponse | None = None
        self.lost_at = now
        self.step_seconds = 0.0
        """What the last answered step took the worker's device."""
        self.observer: Observer | None = None
        self.reset_worker: Callable[[str], None] = lambda reason: None
        self._metrics = metrics
        self._readiness = readiness

    def collect(self, events: TokenEvents | None = None, logprobs: StepLogprobs | None = None) -> None:
        """Bundles the events of a result, if there is one, with what the core has said since."""
        notices = self.core.take_notices()
        if events is not None or notices.admitted or notices.finished:
            if self.observer is not None:
                self.observer.noticed(notices)
            self.bundles.append(Bundle(events, notices, logprobs))

    # ---- requests

    def add(self, record: Record, now: float) -> None:
        refusal = self.core.add(record.request, now)
        if refusal is not None:
            self.delivery.refuse(record, refusal, now)
            return
        self.deadlines.add(record)
        self.collect()

    def abort(self, request_ids: tuple[str, ...], done: "asyncio.Future[list[str]]", now: float) -> None:
        """Aborts requests; `done` gets the ids that were live, once their streams have been told."""
        aborted: list[str] = []
        for request_id in request_ids:
            record = self.requests.by_id(request_id)
            if record is not None and not record.ended and self._abort(record, now):
                aborted.append(request_id)
        self.collect()

        def acknowledge() -> None:
            if not done.done():
                done.set_result(aborted)

        self.after_delivery.append(acknowledge)

    def end(self, record: Record, error: OctavoError, outcome: str, now: float) -> None:
        """Ends a request from the shell's side, with an error for its client."""
        self.delivery.fail(record, error, outcome)
        self._abort(record, now)
        self.collect()

    def drop_stream(self, outbox: Outbox, outcome: str, now: float) -> None:
        """Aborts the requests of a stream that nobody reads any more."""
        for record in self.requests.of_outbox(outbox):
            if not record.ended:
                self.delivery.leave(record, outcome)
            self._abort(record, now)
        self.collect()

    def _abort(self, record: Record, now: float) -> bool:
        """Ends every sequence of a request that the core still has. False if it had none."""
        aborted = [self.core.abort(branch.seq_id, now) for branch in record.branches]
        return any(aborted)

    def stop_matched(self, now: float) -> bool:
        """Tells the core of the stop strings that the delivery found. True when that ended a sequence."""
        stopped = False
        for branch in self.delivery.stops:
            match = branch.emitter.stopped if branch.emitter is not None else None
            assert match is not None
            stopped |= self.core.stop(branch.seq_id, match.output_len, FinishReason.STOP, now)
        self.delivery.stops.clear()
        self.collect()
        return stopped

    def flush_prefix_cache(self, namespace: str | None, done: "asyncio.Future[int]", now: float) -> None:
        """Flushes; `done` gets the number of blocks forgotten. A namespace is a secret and not logged."""
        forgotten = self.core.flush_prefix_cache(namespace)
        which = "all namespaces" if namespace is None else "one namespace"
        _log.info("prefix cache flushed: %d blocks of %s", forgotten, which)
        if not done.done():
            done.set_result(forgotten)

    # ---- steps

    def plan(self, now: float) -> StepPlan | None:
        plan = self._watch.schedule(self.core, now)
        if self.observer is not None and plan is not None:
            self.observer.planned(plan)
        self.collect()
        return plan

    def answered(self, session: Session, answers: list[Answer], now: float) -> None:
        """Applies results. Those after a failed step, or of a session that is over, are counted and left
        out.
        """
        metrics = self._metrics
        for answer in answers:
            if self.session is not session:
                metrics.oddities["stale_session"] += 1
                return
            decoded = answer.decoded
            metrics.worker_rpc_seconds.observe(answer.rpc_seconds)
            self.step_seconds = decoded.forward_seconds
            metrics.step_forward_seconds.observe(decoded.forward_seconds)
            metrics.step_gap_seconds.observe(decoded.gap_seconds)
            if decoded.failure_reason != "STALE_SESSION":
                self.collect(self.core.apply(decoded.result, now), answer.logprobs)
            if decoded.result.failure is not None:
                self._fail_session(session, decoded.failure_reason, decoded.result.failure, now)

    def _fail_session(self, session: Session, reason: str, failure: str, now: float) -> None:
        """After a failed step the worker refuses all others: a new session is needed."""
        self._metrics.step_failed(reason)
        _log.error("step failed: %s", failure, extra={"epoch": epoch_text(session.epoch)})
        self.worker_lost(session, "step failed", now)
        self.reset_worker(f"step failed: {reason}")

    # ---- workers

    def worker_ready(self, session: Session, capacity: worker_pb2.GetCapacityResponse, now: float) -> None:
        known, self.worker = self.worker, capacity
        _log.info(
            "worker runs %s on %s: %d blocks of %d tokens, at most %d tokens and %d rows a step",
            *(capacity.model_id, capacity.device, capacity.num_blocks, capacity.block_size),
            *(capacity.max_batch_tokens, capacity.max_batch_seqs),
            extra={"session_id": epoch_text(session.session_id), "epoch": epoch_text(session.epoch)},
        )
        if known is not None and known.worker_epoch != capacity.worker_epoch:
            self._metrics.epoch_changes += 1
        if known is not None and known.model_fingerprint != capacity.model_fingerprint:
            self._end_requests_of_old_model(now)
        self._metrics.sessions += 1
        self.session = session
        self.core.worker_ready(
            Capacity(
                epoch=Epoch(capacity.worker_epoch),
                model_fingerprint=capacity.model_fingerprint,
                num_blocks=capacity.num_blocks,
                block_size=capacity.block_size,
                max_batch_tokens=capacity.max_batch_tokens,
                max_batch_seqs=capacity.max_batch_seqs,
                max_model_len=capacity.max_model_len,
                num_host_blocks=capacity.num_host_blocks,
                bytes_per_block=capacity.bytes_per_block,
            )
        )
        self.collect()
        self._readiness(True)

    def _end_requests_of_old_model(self, now: float) -> None:
        """A request that has told nothing yet starts over, if its prompt means anything to the new model."""
        assert self.worker is not None
        text = "the worker came back with another model; this request cannot go on"
        for record in self.requests.all():
            if record.output_len or int(record.request.prompt.max()) >= self.worker.vocab_size:
                self.end(record, FailedPrecondition(text, reason="MODEL_CHANGED"), "model_changed", now)

    def worker_lost(self, session: Session, reason: str, now: float) -> None:
        if self.session is not session:
            return
        ids = {"session_id": epoch_text(session.session_id), "epoch": epoch_text(session.epoch)}
        _log.warning("worker lost: %s; %d requests wait for it", reason, len(self.requests), extra=ids)
        session.closed = True
        self.session, self.lost_at = None, now
        self.core.worker_lost()
        self.collect()
        self._readiness(False)

    def audit(self, now: float) -> None:
        """Checks the core's invariants now and then; to be called while nothing runs. Costs a walk over all
        blocks.
        """
        if self.worker is not None:
            self._watch.idle(self.core, self.worker.num_blocks, now)

    def end_waiting_for_worker(self, now: float) -> None:
        """The grace period is over."""
        for record in self.requests.all():
            self.end(record, worker_lost("the worker did not come back in time"), "worker_lost", now)


def worker_lost(why: str) -> Unavailable:
    """The error of a request that has no worker."""
    return Unavailable(f"{why}; try again", reason="WORKER_LOST", retry_after=_RETRY_SECONDS)

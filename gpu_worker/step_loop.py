"""Two threads: one launches steps in order, one waits for the device and answers.

Owns the queue of plans, the session they belong to and the step order; knows no gRPC stream, only a callback
to answer with. Invariant: a plan of any session but the newest is neither run nor answered, answers leave in
step order, after a failed step nothing runs until a new session, and one thread at a time uses the runner.

A plan that finds nothing queued or unanswered is launched by the thread that brings it, where a launch is
short: nobody has to be woken up for it.
"""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from gpu_worker.errors import PlanError
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.model_runner import ModelRunner, PendingStep
from gpu_worker.wire import Int32Array, decode_plan, encode_failure, encode_result
from octavo.errors import ResourceExhausted
from octavo.logging import epoch_text
from octavo.worker.v1 import worker_pb2

if TYPE_CHECKING:
    from gpu_worker.tracing import WorkerTracing

_log = logging.getLogger(__name__)
Answer = Callable[[worker_pb2.RunResponse], None]

MAX_QUEUED = 256
"""Plans that may wait; a scheduler keeps up to four steps in flight."""
_DETAIL_CHARACTERS = 200
_OUTCOMES = {
    worker_pb2.STEP_FAILURE_REASON_INVALID_PLAN: "invalid_plan",
    worker_pb2.STEP_FAILURE_REASON_STALE_SESSION: "stale_session",
    worker_pb2.STEP_FAILURE_REASON_OUT_OF_MEMORY: "out_of_memory",
    worker_pb2.STEP_FAILURE_REASON_DEVICE_ERROR: "device_error",
}
_NO_ROWS = np.empty(0, np.int32)


@dataclass(slots=True)
class Session:
    """One scheduler's claim on the worker. The callbacks are called from the loop's threads.

    opened: the device is free of older steps. finished: nothing of what was submitted is left to answer.
    """

    session_id: int
    answer: Answer
    opened: Callable[[], None]
    finished: Callable[[], None]
    last_step: int = 0
    last_rows: Int32Array = field(default_factory=lambda: _NO_ROWS)
    failed: str = ""


@dataclass(frozen=True, slots=True)
class _Open:
    session: Session


@dataclass(frozen=True, slots=True)
class _Close:
    session: Session


@dataclass(frozen=True, slots=True)
class _End:
    session: Session


@dataclass(frozen=True, slots=True)
class _Step:
    session: Session
    plan: worker_pb2.StepPlan


_Item = _Open | _Close | _End | _Step


@dataclass(frozen=True, slots=True)
class _Launched:
    session: Session
    plan: worker_pb2.StepPlan
    pending: PendingStep


@dataclass(frozen=True, slots=True)
class _Answered:
    """A step's answer, sent in its turn. poison: the last words of a device that cannot go on, or nothing."""

    session: Session
    response: worker_pb2.RunResponse
    poison: str = ""


class StepLoop:
    """Runs plans on one runner. `poisoned` is called with one line when the device cannot go on. tracing:
    spans of steps; None: none.
    """

    def __init__(
        self,
        runner: ModelRunner,
        epoch: int,
        metrics: WorkerMetrics,
        poisoned: Callable[[str], None],
        tracing: "WorkerTracing | None" = None,
    ) -> None:
        self._runner = runner
        self._epoch = epoch
        self._metrics = metrics
        self._poisoned = poisoned
        self._tracing = tracing
        self._current: Session | None = None
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._launched: queue.SimpleQueue[_Launched | _Answered | _Item | None] = queue.SimpleQueue()
        self._num_entered = 0  # written by the reader
        self._num_left = 0  # written by the answering thread
        self._threads = [
            threading.Thread(target=self._launch_all, name="launcher", daemon=True),
            threading.Thread(target=self._answer_all, name="answerer", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends both threads once the step that runs is done."""
        self._current = None
        self._inbox.put(None)
        for thread in self._threads:
            thread.join()

    def open(self, session: Session) -> Session | None:
        """Makes a session the newest at once; its `opened` is called when the device is free of older steps.

        Returns the session that it replaces. Called by the reader.
        """
        replaced, self._current = self._current, session
        self._enter(_Open(session))
        return replaced

    def close(self, session: Session) -> None:
        """The scheduler is gone: drops the session's rows and queued plans, unless a newer one took over."""
        if self._current is session:
            self._current = None
            self._enter(_Close(session))

    def finish(self, session: Session) -> None:
        """No plan of the session follows: its `finished` is called once those before are answered."""
        self._enter(_End(session))

    def submit(self, session: Session, plan: worker_pb2.StepPlan) -> None:
        """Queues a plan, or launches it at once. Called by the reader; never waits. Raises ResourceExhausted
        past MAX_QUEUED.
        """
        if self._inbox.qsize() >= MAX_QUEUED:
            raise ResourceExhausted(f"more than {MAX_QUEUED} plans wait to be run", reason="PLAN_BACKLOG")
        step = _Step(session, plan)
        is_free = self._num_entered == self._num_left
        if is_free and self._runner.launches_quickly and not any(map(_asks, plan.row_setups)):
            launched = self._taken(step)  # a fault of this program ends the session: its reader has it
            self._num_entered += 1
            self._launched.put(launched)
        else:
            self._enter(step)

    def _enter(self, item: _Item) -> None:
        self._num_entered += 1
        self._inbox.put(item)

    def _launch_all(self) -> None:
        while (item := self._inbox.get()) is not None:
            self._launched.put(self._taken(item))
        self._launched.put(None)

    def _taken(self, item: _Item) -> _Launched | _Answered | _Item:
        """What the answering thread has to do with an item, whose turn it is."""
        match item:
            case _Open(session):
                self._runner.reset()
                self._metrics.session_accepted()
            case _Close():
                self._runner.reset()
            case _Step(session, plan):
                if session is self._current:
                    return self._launch(session, plan)
        return item

    def _launch(self, session: Session, message: worker_pb2.StepPlan) -> _Launched | _Answered:
        if self._tracing is not None:
            self._tracing.launching(message)
        try:
            self._check_order(session, message)
            plan = decode_plan(message, session.last_rows)
            pending = self._runner.launch(plan)
        except _StaleError as error:
            return self._fail(session, message, worker_pb2.STEP_FAILURE_REASON_STALE_SESSION, str(error))
        except PlanError as error:
            return self._fail(session, message, worker_pb2.STEP_FAILURE_REASON_INVALID_PLAN, str(error))
        except (RuntimeError, MemoryError) as error:
            return self._fail_on_device(session, message, error)
        session.last_step, session.last_rows = plan.step_id, plan.rows
        return _Launched(session, message, pending)

    def _check_order(self, session: Session, plan: worker_pb2.StepPlan) -> None:
        if plan.worker_epoch != self._epoch:
            mine = epoch_text(self._epoch)
            raise _StaleError(f"worker_epoch: {epoch_text(plan.worker_epoch)}, this worker has {mine}")
        if plan.session_id != session.session_id:
            mine = epoch_text(session.session_id)
            raise _StaleError(f"session_id: {epoch_text(plan.session_id)}, this stream has {mine}")
        if session.failed:
            raise PlanError("step_id", f"{plan.step_id} refused, for {session.failed}; open a new session")
        if plan.step_id != session.last_step + 1:
            raise PlanError("step_id", f"{plan.step_id}, expected {session.last_step + 1}")
        if plan.base_step != session.last_step:
            raise PlanError("base_step", f"{plan.base_step}, expected {session.last_step}")

    def _answer_all(self) -> None:
        while (item := self._launched.get()) is not None:
            if isinstance(item, _End):
                item.session.finished()
            elif isinstance(item, _Launched):
                self._answer_launched(item)
            elif isinstance(item, _Answered):
                self._answer(item)
            self._num_left += 1
            if isinstance(item, _Open):
                item.session.opened()  # its first plan finds nothing entered that has not left

    def _answer(self, answered: _Answered) -> None:
        if answered.session is self._current:
            answered.session.answer(answered.response)
        if answered.poison:
            self._poisoned(answered.poison)

    def _answer_launched(self, item: _Launched) -> None:
        """Answers a launched step once the device is done with it, and counts it after that."""
        try:
            outcome = item.pending.wait()
        except RuntimeError as error:
            self._answer(self._fail_on_device(item.session, item.plan, error))
            return
        seconds = (outcome.forward_seconds, outcome.block_move_seconds, outcome.gap_seconds)
        response = encode_result(
            item.plan,
            outcome.token_ids,
            outcome.failed_rows,
            seconds,
            outcome.logprobs,
            outcome.prompt_logprobs,
            outcome.transfers.step_ids,
            outcome.transfers.seconds,
            outcome.barred_rows,
        )
        self._answer(_Answered(item.session, response))
        self._metrics.step_done(outcome)
        if self._tracing is not None:
            self._tracing.done(item.plan, outcome)

    def _fail_on_device(
        self, session: Session, plan: worker_pb2.StepPlan, error: RuntimeError | MemoryError
    ) -> _Answered:
        memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        reason = (
            worker_pb2.STEP_FAILURE_REASON_OUT_OF_MEMORY
            if memory
            else worker_pb2.STEP_FAILURE_REASON_DEVICE_ERROR
        )
        line = (str(error).splitlines() or [type(error).__name__])[0][:_DETAIL_CHARACTERS]
        _log.error("step failed on the device", exc_info=error, extra={"step_id": plan.step_id})
        answered = self._fail(session, plan, reason, line)
        return replace(answered, poison=line if self._runner.device.is_poisoned_by(error) else "")

    def _fail(
        self, session: Session, plan: worker_pb2.StepPlan, reason: worker_pb2.StepFailureReason, detail: str
    ) -> _Answered:
        """Ends the session's work and makes the answer."""
        if not session.failed:
            session.failed = f"step {plan.step_id} failed"
            _log.warning("step failed: %s", detail, extra={"step_id": plan.step_id})
        self._metrics.step_failed(_OUTCOMES[reason])
        if self._tracing is not None:
            self._tracing.failed(plan, _OUTCOMES[reason])
        return _Answered(session, encode_failure(plan, reason, detail))


class _StaleError(Exception):
    """The plan belongs to another session or epoch."""


def _asks(setup: worker_pb2.RowSetup) -> bool:
    """Whether a new row asks for what may take the host long."""
    return bool(setup.grammar) or setup.sampling.HasField("prompt_logprobs")

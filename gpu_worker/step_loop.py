"""Two threads: one launches steps in order, one waits for the device and answers.

Owns the queue of plans, the session they belong to and the step order; knows no gRPC stream, only a
callback to answer with. Invariant: a plan of any session but the newest is neither run nor answered, and
after a failed step nothing runs until a new session.
"""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from gpu_worker.errors import PlanError
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.model_runner import ModelRunner, PendingStep
from gpu_worker.wire import Int32Array, decode_plan, encode_failure, encode_result
from octavo.logging import epoch_text
from octavo.worker.v1 import worker_pb2

_log = logging.getLogger(__name__)
Answer = Callable[[worker_pb2.RunResponse], None]

_OUTCOMES = {
    worker_pb2.STEP_FAILURE_REASON_INVALID_PLAN: "invalid_plan",
    worker_pb2.STEP_FAILURE_REASON_STALE_SESSION: "stale_session",
    worker_pb2.STEP_FAILURE_REASON_OUT_OF_MEMORY: "out_of_memory",
    worker_pb2.STEP_FAILURE_REASON_DEVICE_ERROR: "device_error",
}
_NO_ROWS = np.empty(0, np.int32)


@dataclass(slots=True)
class Session:
    """One scheduler's claim on the worker. `answer` and `opened` are called from the loop's threads."""

    session_id: int
    answer: Answer
    opened: Callable[[], None]
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
class _Step:
    session: Session
    plan: worker_pb2.StepPlan


@dataclass(frozen=True, slots=True)
class _Launched:
    session: Session
    plan: worker_pb2.StepPlan
    pending: PendingStep


class StepLoop:
    """Runs plans on one runner. `poisoned` is called once, with one line, when the device cannot go on."""

    def __init__(
        self, runner: ModelRunner, epoch: int, metrics: WorkerMetrics, poisoned: Callable[[str], None]
    ) -> None:
        self._runner = runner
        self._epoch = epoch
        self._metrics = metrics
        self._poisoned = poisoned
        self._current: Session | None = None
        self._inbox: queue.SimpleQueue[_Open | _Close | _Step | None] = queue.SimpleQueue()
        self._launched: queue.SimpleQueue[_Launched | None] = queue.SimpleQueue()
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
        self._inbox.put(_Open(session))
        return replaced

    def close(self, session: Session) -> None:
        """The scheduler is gone: drops the session's rows and queued plans, unless a newer one took over."""
        if self._current is session:
            self._current = None
            self._inbox.put(_Close(session))

    def submit(self, session: Session, plan: worker_pb2.StepPlan) -> None:
        """Queues a plan. Called by the reader; never waits."""
        self._inbox.put(_Step(session, plan))

    def _launch_all(self) -> None:
        while (item := self._inbox.get()) is not None:
            match item:
                case _Open(session):
                    self._runner.reset()
                    self._metrics.session_accepted()
                    session.opened()
                case _Close():
                    self._runner.reset()
                case _Step(session, plan):
                    if session is self._current:
                        self._launch(session, plan)
        self._launched.put(None)

    def _launch(self, session: Session, message: worker_pb2.StepPlan) -> None:
        try:
            self._check_order(session, message)
            plan = decode_plan(message, session.last_rows)
            pending = self._runner.launch(plan)
        except _StaleError as error:
            self._fail(session, message, worker_pb2.STEP_FAILURE_REASON_STALE_SESSION, str(error))
        except PlanError as error:
            self._fail(session, message, worker_pb2.STEP_FAILURE_REASON_INVALID_PLAN, str(error))
        except (RuntimeError, MemoryError) as error:
            self._fail_on_device(session, message, error)
        else:
            session.last_step, session.last_rows = plan.step_id, plan.rows
            self._launched.put(_Launched(session, message, pending))

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
            try:
                outcome = item.pending.wait()
            except RuntimeError as error:
                self._fail_on_device(item.session, item.plan, error)
                continue
            self._metrics.step_done(outcome)
            seconds = (outcome.forward_seconds, outcome.block_move_seconds, outcome.gap_seconds)
            self._answer(
                item.session, encode_result(item.plan, outcome.token_ids, outcome.failed_rows, seconds)
            )

    def _fail_on_device(self, session: Session, plan: worker_pb2.StepPlan, error: BaseException) -> None:
        memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        reason = (
            worker_pb2.STEP_FAILURE_REASON_OUT_OF_MEMORY
            if memory
            else worker_pb2.STEP_FAILURE_REASON_DEVICE_ERROR
        )
        line = (str(error).splitlines() or [type(error).__name__])[0]
        _log.error("step failed on the device", exc_info=error, extra={"step_id": plan.step_id})
        self._fail(session, plan, reason, line)
        if self._runner.device.is_poisoned_by(error):
            self._poisoned(line)

    def _fail(
        self, session: Session, plan: worker_pb2.StepPlan, reason: worker_pb2.StepFailureReason, detail: str
    ) -> None:
        if not session.failed:
            session.failed = f"step {plan.step_id} failed"
            _log.warning("step refused: %s", detail, extra={"step_id": plan.step_id})
        self._metrics.step_failed(_OUTCOMES[reason])
        self._answer(session, encode_failure(plan, reason, detail))

    def _answer(self, session: Session, response: worker_pb2.RunResponse) -> None:
        if session is self._current:
            session.answer(response)


class _StaleError(Exception):
    """The plan belongs to another session or epoch."""

"""An engine with the real core, a clock that the test turns, and a worker that answers when told.

Owns the far side of the session; knows no rule of the engine. Invariant: every answer has the shape that its
plan asks for, with tokens of the test's choice.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np

from octavo import arrays
from octavo.errors import OctavoError
from octavo.v1 import inference_pb2
from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.plan import NewRequest, SamplingParams, SchedulerConfig, SeqId
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.engine import Engine, EngineSettings
from scheduler_svc.metrics import ShellMetrics
from scheduler_svc.requests import Record
from scheduler_svc.session import Session
from scheduler_svc.streams import BacklogLimits, Outbox, Pending
from scheduler_svc.tracing import StepTracer

VOCAB = 1000


def capacity(
    epoch: int = 1, fingerprint: str = "model", num_blocks: int = 64
) -> worker_pb2.GetCapacityResponse:
    return worker_pb2.GetCapacityResponse(
        worker_epoch=epoch, model_fingerprint=fingerprint, num_blocks=num_blocks, block_size=4,
        max_batch_tokens=64, max_batch_seqs=8, max_model_len=512, vocab_size=VOCAB,
    )  # fmt: skip


class EngineRig:
    """token_of: what a row samples at a context length."""

    def __init__(self, settings: EngineSettings, config: SchedulerConfig) -> None:
        self.now = 1000.0
        self.ready: list[bool] = []
        self.resets: list[str] = []
        self.metrics = ShellMetrics()
        self.engine = Engine(Scheduler(config), settings, self.metrics, lambda: self.now, self.ready.append)
        self.engine.on_reset(self.resets.append)
        self.plans: deque[worker_pb2.StepPlan] = deque()
        self.token_of: Callable[[int], int] = lambda place: 10 + place
        self.session: Session | None = None
        self.tracer: StepTracer | None = None
        """Of the sessions to come."""
        self._sessions = 0
        self._seqs = 0

    async def settle(self) -> None:
        """Lets the engine take all its turns."""
        for _ in range(12):
            await asyncio.sleep(0)

    async def connect(self, told: worker_pb2.GetCapacityResponse | None = None) -> None:
        self._sessions += 1
        facts = told or capacity()
        self.plans.clear()
        self.session = Session(
            self._sessions,
            facts.worker_epoch,
            VOCAB,
            self.plans.append,
            self.engine.worker_oddity,
            self.tracer,
        )
        self.engine.worker_ready(self.session, facts)
        await self.settle()

    async def lose(self) -> None:
        assert self.session is not None
        self.session.close(self.now)
        self.engine.worker_lost(self.session, "test")
        await self.settle()

    def result(self, **fields: Any) -> worker_pb2.StepResult:
        """The right answer to the oldest plan, with fields replaced."""
        message = self.plans.popleft()
        contexts = arrays.decode(message.context_lens, "test")
        samples = 0 if message.no_samples else len(message.sample_rows) // 4 or len(contexts)
        tokens = np.array([self.token_of(int(place)) for place in contexts[:samples]], np.int32)
        right: dict[str, Any] = {
            "session_id": message.session_id,
            "worker_epoch": message.worker_epoch,
            "step_id": message.step_id,
            "token_ids": arrays.encode(tokens),
        }
        return worker_pb2.StepResult(**right | fields)

    async def answer(self, steps: int = 1, **fields: Any) -> None:
        """Answers the oldest plans, one by one."""
        for _ in range(steps):
            assert self.session is not None
            answers = self.session.take(self.result(**fields), self.now)
            if answers:
                self.engine.worker_answered(self.session, answers)
            await self.settle()

    async def answer_all(self, limit: int = 1000) -> None:
        """Answers until no plan is left."""
        while self.plans and limit:
            await self.answer()
            limit -= 1

    def record(self, outbox: Outbox | None = None, length: int = 5, tokens: int = 4, **fields: Any) -> Record:
        """A request of new tokens, not submitted yet; unknown fields go to the Record."""
        self._seqs += 1
        box = outbox or Outbox(BacklogLimits())
        self.engine.open(box)
        prompt = np.arange(self._seqs * 17, self._seqs * 17 + length, dtype=np.int32) % VOCAB
        request = NewRequest(
            SeqId(self._seqs), prompt, max_tokens=tokens, sampling=SamplingParams(temperature=0.0)
        )
        defaults: dict[str, Any] = {
            "request_id": f"r{self._seqs}", "request": request, "outbox": box, "emitters": [None],
            "include_stop_token": False, "tokens_only": True, "arrival": self.now,
        }  # fmt: skip
        return Record(**defaults | fields)

    async def submit(self, outbox: Outbox | None = None, **fields: Any) -> Record:
        record = self.record(outbox, **fields)
        self.engine.submit(record)
        await self.settle()
        return record

    async def fill(self, tokens: int = 50) -> list[Record]:
        """As many requests as a step has rows, all admitted."""
        records = [self.record(tokens=tokens) for _ in range(8)]
        for record in records:
            self.engine.submit(record)
        await self.settle()
        return records

    def outcome(self) -> dict[str, int]:
        """The outcomes counted so far, without those that never were."""
        return {name: count for name, count in self.metrics.outcomes.items() if count}


def read(record: Record) -> Pending:
    """All that a stream of one request has pending, merged."""
    taken = record.outbox.take()
    assert len(taken) <= 1
    return taken[0] if taken else Pending(record.request_id)


def reason(pending: Pending) -> str:
    """How a request ended: the finish reason, the error's reason, or an empty string."""
    if pending.error is not None:
        assert isinstance(pending.error, OctavoError)
        return pending.error.reason
    if pending.finished is None:
        return ""
    return inference_pb2.FinishReason.Name(pending.finished.reason).removeprefix("FINISH_REASON_")


@asynccontextmanager
async def engine_rig(
    settings: EngineSettings | None = None, config: SchedulerConfig | None = None, connect: bool = True
) -> AsyncIterator[EngineRig]:
    """A running engine, with a worker unless told otherwise."""
    rig = EngineRig(settings or EngineSettings(), config or SchedulerConfig())
    running = asyncio.create_task(rig.engine.run())
    try:
        if connect:
            await rig.connect()
        yield rig
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

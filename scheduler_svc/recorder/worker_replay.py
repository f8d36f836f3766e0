"""A log's plans, made again and run by a live worker, its tokens beside the recorded ones.

Owns the session with the worker and the comparison of tokens; knows no file. Invariant: the core is told the
recorded answers, never the worker's, so that the plans stay those of the log whatever the worker says.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.plan import Capacity, RowSetup, SeqId, StepPlan, StepResult
from scheduler_svc.recorder.format import Kind, Record
from scheduler_svc.recorder.replay import Difference, Replayer
from scheduler_svc.recorder.taint import Taint
from scheduler_svc.session import Answer, Session
from scheduler_svc.worker_client import LinkSettings, WorkerClient

CONNECT_SECONDS = 30.0


class CannotReplay(Exception):
    """The worker is not there, cannot run the log's plans, or failed; the text says which and the numbers."""


@dataclass(frozen=True, slots=True)
class OtherToken:
    """A token that the worker sampled otherwise. output: its place in the sequence's output, from 1."""

    step_id: int
    seq_id: SeqId
    output: int
    recorded: int
    got: int

    def __str__(self) -> str:
        where = f"step {self.step_id}, sequence {self.seq_id}, output token {self.output}"
        return f"{where}: recorded {self.recorded}, the worker gives {self.got}"


@dataclass(slots=True)
class Comparison:
    """equal, other: tokens compared. left_out: those that say nothing, because the row had left the log
    before, or sampled at a temperature under another model. first: the first one that differed.
    """

    equal: int = 0
    other: int = 0
    left_out: int = 0
    first: OtherToken | None = None
    same_model: bool = True


@dataclass(slots=True)
class _Run:
    """A session under way."""

    session: Session
    taint: Taint
    sent: deque[StepPlan] = field(default_factory=deque)
    setups: dict[int, RowSetup] = field(default_factory=dict)


class WorkerReplay:
    """Plays one log on the worker at an address. Raises CannotReplay."""

    def __init__(self, replayer: Replayer, settings: LinkSettings) -> None:
        self.comparison = Comparison()
        self._replayer = replayer
        self._address = settings.address
        self._client = WorkerClient(settings, self, time.monotonic)
        self._ready: asyncio.Queue[tuple[Session, worker_pb2.GetCapacityResponse]] = asyncio.Queue()
        self._answers: asyncio.Queue[Answer | str] = asyncio.Queue()
        self._run: _Run | None = None
        self._step_seconds = settings.step_seconds

    async def play(self, records: Iterable[Record]) -> Difference | None:
        """To the end of the log, or to the first plan that differs."""
        link = asyncio.create_task(self._client.run())
        try:
            for record in records:
                difference = self._replayer.feed(record)
                if difference is not None:
                    return difference
                await self._follow(record)
            return None
        finally:
            link.cancel()
            await asyncio.gather(link, return_exceptions=True)

    async def _follow(self, record: Record) -> None:
        replayer = self._replayer
        if record.kind is Kind.WORKER_READY:
            assert replayer.capacity is not None
            await self._begin(replayer.capacity)
        elif record.kind is Kind.WORKER_LOST:
            self._run = None
        elif self._run is not None and replayer.plan is not None:
            self._send(self._run, replayer.plan)
        elif self._run is not None and replayer.result is not None:
            await self._compare(self._run, replayer.result)

    async def _begin(self, recorded: Capacity) -> None:
        if self._run is not None or self.comparison.equal or self.comparison.other:
            self._client.reset("the next session of the log")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                while True:
                    session, told = await self._ready.get()
                    if not session.closed:
                        break
        except TimeoutError:
            raise CannotReplay(f"worker: no session with {self._address} in {CONNECT_SECONDS:g} s") from None
        check_fits(recorded, told)
        self.comparison.same_model &= told.model_fingerprint == recorded.model_fingerprint
        while not self._answers.empty():
            self._answers.get_nowait()
        self._run = _Run(session, Taint(recorded.block_size))

    def _send(self, run: _Run, plan: StepPlan) -> None:
        run.taint.follow(plan)
        for setup in plan.setups:
            run.setups[setup.row] = setup
        run.session.send(plan, time.monotonic())
        run.sent.append(plan)

    async def _compare(self, run: _Run, recorded: StepResult) -> None:
        """Waits for the worker's answer to a step whose recorded answer was just applied."""
        if not any(plan.step_id == recorded.step_id for plan in run.sent):
            return  # an odd answer of the log: nobody waited for it
        while run.sent and run.sent[0].step_id <= recorded.step_id:
            try:
                async with asyncio.timeout(self._step_seconds):
                    answer = await self._answers.get()
            except TimeoutError:
                raise CannotReplay(f"worker: no answer to step {run.sent[0].step_id}") from None
            if isinstance(answer, str):
                raise CannotReplay(f"worker: the session ended: {answer}")
            plan = run.sent.popleft()
            got = answer.decoded.result
            if got.failure is not None:
                raise CannotReplay(f"worker: step {plan.step_id} failed: {got.failure}")
            if plan.step_id == recorded.step_id and recorded.failure is None:
                self._compare_tokens(run, plan, recorded, got)

    def _compare_tokens(self, run: _Run, plan: StepPlan, recorded: StepResult, got: StepResult) -> None:
        context_of = dict(zip(plan.rows.tolist(), plan.context_lens.tolist(), strict=True))
        tally = self.comparison
        for row, old, new in zip(
            plan.sample_rows.tolist(), recorded.token_ids.tolist(), got.token_ids.tolist(), strict=False
        ):
            setup = run.setups[row]
            comparable = tally.same_model or setup.sampling.temperature == 0
            if old < 0 or not run.taint.sound(row) or not comparable:
                tally.left_out += 1
            elif old == new:
                tally.equal += 1
            else:
                tally.other += 1
                output = context_of.get(row, setup.prompt_len) - setup.prompt_len + 1
                tally.first = tally.first or OtherToken(plan.step_id, setup.seq_id, output, old, new)
            if old != new:
                run.taint.differs(row, list(run.sent))

    # What the link tells

    def worker_ready(self, session: Session, capacity: worker_pb2.GetCapacityResponse) -> None:
        self._ready.put_nowait((session, capacity))

    def worker_lost(self, session: Session, reason: str) -> None:
        if self._run is not None and self._run.session is session:
            self._answers.put_nowait(reason)

    def worker_answered(self, session: Session, answers: list[Answer]) -> None:
        if self._run is not None and self._run.session is session:
            for answer in answers:
                self._answers.put_nowait(answer)

    def worker_oddity(self, kind: str) -> None:
        """An answer that had to be repaired shows as a token that differs."""


def check_fits(recorded: Capacity, told: worker_pb2.GetCapacityResponse) -> None:
    """Raises CannotReplay when the worker cannot run the log's plans."""
    if told.block_size != recorded.block_size:
        raise CannotReplay(
            f"block_size: the log's plans have {recorded.block_size}, worker {told.block_size}"
        )
    for name in ("num_blocks", "max_batch_tokens", "max_batch_seqs", "max_model_len"):
        needed, there = getattr(recorded, name), getattr(told, name)
        if there < needed:
            raise CannotReplay(f"{name}: the log's plans need {needed}, the worker has {there}")

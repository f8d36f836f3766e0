"""A worker without a model: the whole octavo.worker.v1 service over a simulated pool, in this process.

Owns the session, epoch and step checks and the answers' timing; knows no scheduler. Invariant: plans are
obeyed in the order of their arrival and every broken rule is kept in `violations`, so that a test can ask
for none.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from octavo.errors import FailedPrecondition, InvalidArgument, StaleEpoch
from octavo.interceptors import ErrorMapping
from octavo.transport import LARGEST_MESSAGE, server_options
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from tests.fakes.fake_grammars import FakeGrammars
from tests.fakes.fake_logprobs import FakeLogprobs
from tests.fakes.faults import BEFORE_APPLY, FAILS_A_ROW, Fault, FaultKind, bend
from tests.fakes.plan_decoder import DecodedPlan, decode_plan
from tests.fakes.plan_like import Int32Array
from tests.fakes.simulated_kv import ProtocolViolation, SimulatedKv

PROTOCOL_VERSION = 1
RunContext = grpc.aio.ServicerContext[worker_pb2.RunRequest, worker_pb2.RunResponse]


@dataclass(frozen=True)
class FakeSettings:
    """What the fake says in its handshake. step_delay: seconds before each answer. transfer_lag: steps until
    a transfer out is done.
    """

    num_blocks: int = 64
    num_host_blocks: int = 0
    block_size: int = 16
    vocab_size: int = 384
    max_batch_tokens: int = 2048
    max_batch_seqs: int = 256
    max_model_len: int = 2048
    model_fingerprint: str = "fake"
    eos_token_ids: tuple[int, ...] = ()
    step_delay: float = 0.0
    transfer_lag: int = 0
    protocol_version: int = PROTOCOL_VERSION


@dataclass
class _Session:
    session_id: int
    last_step: int = 0
    base_rows: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    failed: bool = False
    logprobs: FakeLogprobs = field(default_factory=FakeLogprobs)
    outbox: asyncio.Queue[list[worker_pb2.RunResponse]] = field(default_factory=asyncio.Queue)
    late: list[worker_pb2.RunResponse] = field(default_factory=list)


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Start it with `start`; script it with `script`, `inject`, `hold`, `release`; look at `plans`."""

    def __init__(self, settings: FakeSettings = FakeSettings()) -> None:
        self.settings = settings
        self.step_delay = settings.step_delay
        self.address = ""
        self.plans: list[DecodedPlan] = []
        self.messages: list[worker_pb2.StepPlan] = []
        self.answers = 0
        """Plans whose answers have been sent."""
        self.violations: list[str] = []
        self.sessions: list[int] = []
        self.reported_epoch: int | None = None  # what GetCapacity says instead of the live epoch
        self.keeps_transfers = False  # acknowledges none, against the protocol
        self.grammars = FakeGrammars()
        self.faults: deque[Fault] = deque()
        self._scripts: list[tuple[Sequence[int], Sequence[int]]] = []
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Condition()
        self._permits: int | None = None  # answers that may go out; None: all
        self._session: _Session | None = None
        self._new_life()

    async def start(self, address: str = "127.0.0.1:0") -> str:
        """Serves at the address (`unix:/path` or host:port, port 0 picks) and returns it."""
        self._server = grpc.aio.server(interceptors=[ErrorMapping()], options=server_options(LARGEST_MESSAGE))
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, self._server)
        for name in ("", "octavo.worker.v1.WorkerService"):
            await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
        port = self._server.add_insecure_port(address)
        await self._server.start()
        self.address = address if address.startswith("unix:") else f"{address.rsplit(':', 1)[0]}:{port}"
        return self.address

    async def die(self) -> None:
        """Breaks every stream and stops listening; the pool's content is gone."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def break_stream(self) -> None:
        """Ends the stream of the live session; epoch and pool content stay."""
        old = self._session
        self._session = None
        if old is not None:
            old.outbox.put_nowait([])
        async with self._changed:
            self._changed.notify_all()

    async def restart(self, settings: FakeSettings | None = None) -> None:
        """Comes back at the same address with a new epoch and an empty pool."""
        await self.die()
        self.settings = settings or self.settings
        self._new_life()
        await self.start(self.address)

    def script(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Every row with this prompt outputs these tokens; past their end the hash goes on."""
        self._scripts.append((prompt, tokens))
        self.kv.script(prompt, tokens)

    def inject(self, kind: FaultKind, at_step: int | None = None) -> None:
        """Bends the answer to the given step, or to the next plan that arrives."""
        self.faults.append(Fault(kind, at_step))

    def hold(self) -> None:
        """Plans are obeyed, answers wait for `release`."""
        self._permits = 0

    async def release(self, answers: int | None = None) -> None:
        """Lets this many answers go, then holds again; None: all, now and later."""
        async with self._changed:
            self._permits = None if answers is None else (self._permits or 0) + answers
            self._changed.notify_all()

    async def wait_for_plans(self, count: int, timeout: float = 60.0) -> None:  # noqa: ASYNC109
        async with asyncio.timeout(timeout), self._changed:
            await self._changed.wait_for(lambda: len(self.plans) >= count)

    async def GetCapacity(self, request: object, context: object) -> worker_pb2.GetCapacityResponse:  # noqa: N802
        s = self.settings
        return worker_pb2.GetCapacityResponse(
            worker_epoch=self.epoch if self.reported_epoch is None else self.reported_epoch,
            protocol_version=s.protocol_version,
            model_id="fake",
            model_fingerprint=s.model_fingerprint,
            num_blocks=s.num_blocks,
            num_host_blocks=s.num_host_blocks,
            block_size=s.block_size,
            max_batch_tokens=s.max_batch_tokens,
            max_batch_seqs=s.max_batch_seqs,
            max_model_len=s.max_model_len,
            vocab_size=s.vocab_size,
            bytes_per_block=s.block_size * 8,
            kv_dtype="int32",
            kv_layout="block,slot",
            kernels=[worker_pb2.KernelChoice(op="all", backend="fake", why="a test")],
            tensor_parallel_size=1,
            eos_token_ids=s.eos_token_ids,
            device="none",
        )

    async def HoldGrammar(  # noqa: N802
        self, request: worker_pb2.HoldGrammarRequest, context: object
    ) -> AsyncIterator[worker_pb2.HoldGrammarResponse]:
        async for answer in self.grammars.hold(request.grammar):
            yield answer

    async def Run(self, requests: object, context: RunContext) -> None:  # noqa: N802
        session = await self._accept(context)
        reader = asyncio.create_task(self._read(session, context))
        writer = asyncio.create_task(self._write(session, context))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()
            writer.cancel()
        if session is not self._session:
            raise StaleEpoch("another session took over")

    def _new_life(self) -> None:
        self.epoch = secrets.randbits(64)
        s = self.settings
        self.kv = SimulatedKv(s.num_blocks, s.block_size, s.vocab_size, s.num_host_blocks)
        for prompt, tokens in self._scripts:
            self.kv.script(prompt, tokens)
        self._session = None

    async def _accept(self, context: RunContext) -> _Session:
        first = await context.read()
        if not isinstance(first, worker_pb2.RunRequest) or not first.HasField("hello"):
            raise InvalidArgument("message: the first must be a hello", field="message")
        hello = first.hello
        if hello.protocol_version != self.settings.protocol_version:
            raise FailedPrecondition(
                f"protocol_version: {hello.protocol_version}",
                reason="PROTOCOL_VERSION",
                field="protocol_version",
            )
        if hello.worker_epoch != self.epoch:
            raise StaleEpoch("worker_epoch: not the epoch of this worker", field="worker_epoch")
        self.kv.drop_rows()
        await self.break_stream()
        session = self._session = _Session(hello.session_id)
        self.sessions.append(hello.session_id)
        accepted = worker_pb2.SessionAccepted(
            session_id=hello.session_id,
            worker_epoch=self.epoch,
            protocol_version=self.settings.protocol_version,
        )
        await context.write(worker_pb2.RunResponse(accepted=accepted))
        return session

    async def _read(self, session: _Session, context: RunContext) -> None:
        while isinstance(request := await context.read(), worker_pb2.RunRequest):
            if session is not self._session:
                return
            self.messages.append(request.plan)
            messages = self._answer(session, request.plan)
            if messages is not None:
                session.outbox.put_nowait(messages)
            async with self._changed:
                self._changed.notify_all()

    def _answer(self, session: _Session, message: worker_pb2.StepPlan) -> list[worker_pb2.RunResponse] | None:
        result = worker_pb2.StepResult(
            session_id=session.session_id,
            worker_epoch=self.epoch,
            step_id=message.step_id,
            forward_seconds=1e-3,
        )
        fault = self._fault_for(message)
        try:
            plan = self._checked(session, message, fault)
            tokens = self.kv.apply(plan)
            result.token_ids = tokens.astype("<i4").tobytes()
            session.logprobs.answer(message, plan, tokens, result)
            self._acknowledge(plan, result)
        except ProtocolViolation as broken:
            expected = session.failed or (fault is not None and fault.kind in BEFORE_APPLY)
            session.failed = True
            if not expected:
                self.violations.append(f"step {message.step_id}: {broken}")
            result.failure.reason = worker_pb2.STEP_FAILURE_REASON_INVALID_PLAN
            result.failure.detail = str(broken)
            return [worker_pb2.RunResponse(result=result)]
        if fault is not None and fault.kind in FAILS_A_ROW:
            self._spoil(plan)
        messages = bend(fault, result, plan.sample_rows.tolist())
        if fault is not None and fault.kind is FaultKind.REORDER:
            session.late = messages
            return None
        messages, session.late = messages + session.late, []
        return messages

    def _acknowledge(self, plan: DecodedPlan, result: worker_pb2.StepResult) -> None:
        """Completes the transfers that are old enough; a plan without rows waits for all of them."""
        oldest = plan.step_id - (self.settings.transfer_lag if len(plan.rows) else 0)
        done = [step for step in self.kv.host.under_way if step <= oldest]
        for step in done:
            self.kv.host.complete(step)
        if not self.keeps_transfers:
            result.acknowledged_transfers = np.array(done, "<i4").tobytes()
            result.transfer_seconds = 1e-5 * len(done)

    def _checked(self, session: _Session, message: worker_pb2.StepPlan, fault: Fault | None) -> DecodedPlan:
        """The decoded plan of a step that may run now. Raises ProtocolViolation."""
        if session.failed:
            raise ProtocolViolation("step_id", "a step failed before; a new session is due")
        if message.session_id != session.session_id:
            raise ProtocolViolation("session_id", f"{message.session_id}, live is {session.session_id}")
        if message.worker_epoch != self.epoch:
            raise ProtocolViolation("worker_epoch", f"{message.worker_epoch}, live is {self.epoch}")
        if message.step_id != session.last_step + 1:
            raise ProtocolViolation("step_id", f"{message.step_id} after {session.last_step}")
        if message.base_step != session.last_step:
            raise ProtocolViolation("base_step", f"{message.base_step} after {session.last_step}")
        plan = decode_plan(message, session.base_rows)
        self.plans.append(plan)
        session.last_step, session.base_rows = message.step_id, plan.rows
        if (
            len(plan.input_ids) > self.settings.max_batch_tokens
            or len(plan.rows) > self.settings.max_batch_seqs
        ):
            raise ProtocolViolation("rows", f"{len(plan.input_ids)} tokens in {len(plan.rows)} rows")
        if fault is not None and fault.kind in BEFORE_APPLY:
            raise ProtocolViolation("step_id", "refused, as scripted")
        return plan

    def _spoil(self, plan: DecodedPlan) -> None:
        """The first sampling row fails: what it wrote in this step is worth nothing."""
        row = int(plan.sample_rows[0])
        at = plan.rows.tolist().index(row)
        self.kv.poison(row, int(plan.context_lens[at] - plan.query_lens[at]))

    def _fault_for(self, message: worker_pb2.StepPlan) -> Fault | None:
        """The next fault, if it is due: at its step, or at the next step that samples."""
        if not self.faults:
            return None
        at_step = self.faults[0].at_step
        due = not message.no_samples if at_step is None else at_step == message.step_id
        return self.faults.popleft() if due else None

    async def _write(self, session: _Session, context: RunContext) -> None:
        while True:
            messages = await session.outbox.get()
            if self.step_delay:
                await asyncio.sleep(self.step_delay)
            async with self._changed:
                await self._changed.wait_for(lambda: self._permits != 0 or session is not self._session)
                if self._permits is not None:
                    self._permits -= 1
            if session is not self._session:
                return
            self.answers += 1
            for message in messages:
                await context.write(message)


if __name__ == "__main__":
    from tests.fakes.worker_process import main

    main()

"""A whole worker in this process, on a free port, and a scheduler's end of its step stream.

Owns the start and stop of both; knows no scenario. Invariant: nothing runs on once the context ends.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from gpu_worker.grammars import GrammarCompiler
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.model_runner import ModelRunner
from gpu_worker.server import WorkerServer, WorkerServicer
from gpu_worker.step_loop import StepLoop
from gpu_worker.tracing import WorkerTracing
from octavo import handshake, transport
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from tests.fixtures.tiny_runner import make_runner

EPOCH = 0xABCDEF
LIMIT = 1 << 20


@dataclass
class LiveWorker:
    """runner is the worker's own; stub speaks to it over gRPC; poisoned collects what killed the device."""

    runner: ModelRunner
    metrics: WorkerMetrics
    servicer: WorkerServicer
    server: WorkerServer
    address: str
    channel: grpc.aio.Channel
    stub: Any
    poisoned: list[str]

    async def session(self, session_id: int, epoch: int = EPOCH, version: int = 1) -> "SchedulerEnd":
        end = SchedulerEnd(self.stub.Run(), session_id)
        hello = worker_pb2.SessionHello(session_id=session_id, worker_epoch=epoch, protocol_version=version)
        await end.call.write(worker_pb2.RunRequest(hello=hello))
        accepted = await end.call.read()
        assert accepted.accepted.session_id == session_id
        assert accepted.accepted.worker_epoch == EPOCH
        return end


@dataclass
class SchedulerEnd:
    """One step stream."""

    call: Any
    session_id: int

    async def send(self, plan: worker_pb2.StepPlan) -> None:
        await self.call.write(worker_pb2.RunRequest(plan=plan))

    async def ask(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        await self.send(plan)
        return await self.result()

    async def result(self) -> worker_pb2.StepResult:
        response = await self.call.read()
        if response is grpc.aio.EOF:
            raise EOFError(await self.call.code())
        result: worker_pb2.StepResult = response.result
        return result


@asynccontextmanager
async def live_worker(
    model: Path,
    ready: bool = True,
    limit: int = LIMIT,
    tracing: WorkerTracing | None = None,
    grammars: GrammarCompiler | None = None,
) -> AsyncIterator[LiveWorker]:
    """A worker with 64 blocks of 4 tokens, 8 rows and 256 tokens of context. grammars: what HoldGrammar
    compiles with.
    """
    runner, metrics, poisoned = make_runner(model), WorkerMetrics(), list[str]()
    loop = StepLoop(runner, EPOCH, metrics, poisoned.append, tracing)
    loop.start()
    servicer = WorkerServicer(EPOCH)
    server = WorkerServer(servicer, limit, limit)
    address = await server.start("127.0.0.1:0")
    if ready:
        capacity = worker_pb2.GetCapacityResponse(protocol_version=handshake.PROTOCOL_VERSION, num_blocks=64)
        servicer.ready(capacity, loop, grammars)
        await server.set_serving(True)
    try:
        async with grpc.aio.insecure_channel(address, options=transport.client_options(limit)) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)  # type: ignore[no-untyped-call]
            yield LiveWorker(runner, metrics, servicer, server, address, channel, stub, poisoned)
    finally:
        await server.stop(0)
        loop.stop()

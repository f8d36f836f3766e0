"""A25, A23: the link to the worker breaks, goes deaf, or stays away, with a fake worker behind it."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from octavo import handshake
from octavo.errors import Unavailable, reason_of
from octavo.worker.v1 import worker_pb2
from scheduler_svc import plan_sender, worker_client
from scheduler_svc.session import Answer, Session
from scheduler_svc.worker_client import LinkSettings, WorkerClient
from tests.e2e.processes import Processes
from tests.e2e.proxy import Proxy
from tests.e2e.rig import SMALL, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, until, wanted
from tests.e2e.service import Service, request
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.faults import FaultKind

PATIENCE, STANDSTILL = 3.0, 5.0
"""Seconds that a worker may be silent, and that a process which has to be seen as frozen is frozen: the first
longer than a busy machine leaves one process waiting, for tests count the sessions that are lost.
"""


@pytest.fixture(scope="module")
def hasty(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    """A scheduler that loses patience with its worker while a test can wait for it."""
    flags = ["--step-timeout-seconds", f"{PATIENCE}", "--worker-liveness-seconds", f"{PATIENCE}"]
    return seat_scheduler(shared_processes, tiny_llama, *flags)


def fails_with(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str]:
    return error.code(), reason_of(error)


async def next_session(fake: FakeWorker, after: int) -> None:
    """Waits until more than `after` sessions have begun: the one before is lost then. Readiness would not
    show it, for it may be back between two looks.
    """
    await until(lambda: len(fake.sessions) > after)


async def begin_all(rig: Rig, count: int = 5, tokens: int = 50) -> list["asyncio.Task[object]"]:
    runs = await asyncio.gather(*(rig.begin(request(prompt_of(6 + i, i), tokens)) for i in range(count)))
    return [task for _, task in runs]


async def check_whole(tasks: list["asyncio.Task[object]"], tokens: int = 50) -> None:
    replies = await asyncio.gather(*tasks)
    assert [r.tokens for r in replies] == [  # type: ignore[attr-defined]
        wanted(prompt_of(6 + i, i), tokens) for i in range(len(tasks))
    ]


@pytest.mark.parametrize("kind", [FaultKind.DROP, FaultKind.REORDER])
async def test_a26_a_lost_answer_costs_a_session_and_no_token(hasty: SchedulerSeat, kind: FaultKind) -> None:
    async with rig_at(hasty) as rig:
        rig.fake.step_delay = 0.002
        tasks = await begin_all(rig)
        rig.fake.inject(kind)
        await check_whole(tasks)
        assert len(rig.fake.sessions) == (2 if kind is FaultKind.DROP else 1)


async def test_a23_a_step_past_its_deadline_costs_a_session_and_no_token(hasty: SchedulerSeat) -> None:
    async with rig_at(hasty) as rig:
        rig.fake.step_delay = 0.002
        tasks = await begin_all(rig)
        rig.fake.hold()
        await next_session(rig.fake, after=1)
        await rig.fake.release()
        await check_whole(tasks)


async def test_a_link_that_breaks_costs_a_session_and_no_token(
    processes: Processes, tiny_llama: Path
) -> None:
    fake = FakeWorker(replace(SMALL, step_delay=0.002))
    await fake.start(f"unix:{processes.folder}/far.sock")
    async with Proxy(fake.address) as proxy:
        flags = ["--worker-liveness-seconds", "1"]
        process = await asyncio.to_thread(processes.scheduler, tiny_llama, proxy.address, *flags)
        async with Service(process.address) as service:
            await service.wait_ready()
            rig = Rig(SchedulerSeat(process, proxy.address), service, fake)
            tasks = await begin_all(rig)
            proxy.break_all()
            await next_session(fake, after=1)
            await check_whole(tasks)
            tasks, before = await begin_all(rig), len(fake.sessions)
            proxy.swallow()
            await service.wait_ready(False)
            proxy.pass_on()
            await next_session(fake, before)
            await check_whole(tasks)
    assert not fake.violations
    await fake.die()


async def test_a25_a_worker_frozen_idle_is_noticed(processes: Processes, hasty: SchedulerSeat) -> None:
    sizes = ["--num-blocks", "64", "--block-size", "4"]
    worker = await asyncio.to_thread(processes.fake_worker, hasty.worker_address, *sizes)
    async with Service(hasty.process.address) as service:
        await service.wait_ready()
        worker.freeze()
        await service.wait_ready(False)
        worker.thaw()
        await service.wait_ready()
        assert (await service.generate(prompt_of(4), 3)).tokens == wanted(prompt_of(4), 3)
        report = await asyncio.to_thread(worker.ask, do="report")
        assert (report["violations"], report["sessions"]) == ([], 2)
        worker.kill()
        await service.wait_ready(False)


async def test_a_scheduler_that_itself_stood_still_keeps_its_worker(hasty: SchedulerSeat) -> None:
    """A25: its own silence says nothing of the worker."""
    async with rig_at(hasty) as rig:
        hasty.process.freeze()
        await asyncio.sleep(STANDSTILL)
        hasty.process.thaw()
        assert (await rig.service.generate(prompt_of(4), 3)).tokens == wanted(prompt_of(4), 3)
        await asyncio.sleep(1.0)
        assert len(rig.fake.sessions) == 1


async def test_after_the_grace_period_requests_end_with_worker_lost(
    processes: Processes, tiny_llama: Path
) -> None:
    seat = await asyncio.to_thread(seat_scheduler, processes, tiny_llama, "--worker-grace-seconds", "1.5")
    async with rig_at(seat) as rig:
        rig.fake.step_delay = 0.01
        (task,) = await begin_all(rig, count=1, tokens=200)
        await rig.fake.die()
        with pytest.raises(grpc.aio.AioRpcError) as running:
            await task
        assert fails_with(running.value) == (grpc.StatusCode.UNAVAILABLE, "WORKER_LOST")
        with pytest.raises(grpc.aio.AioRpcError) as fresh:
            await rig.service.generate(prompt_of(4), 3)
        assert fails_with(fresh.value) == (grpc.StatusCode.UNAVAILABLE, "WORKER_LOST")
        await rig.fake.restart()
        await rig.service.wait_ready()
        assert (await rig.service.generate(prompt_of(4), 3)).tokens == wanted(prompt_of(4), 3)


async def test_before_the_first_worker_a_scheduler_lives_and_says_so(
    processes: Processes, tiny_llama: Path
) -> None:
    process = await asyncio.to_thread(processes.scheduler, tiny_llama, f"unix:{processes.folder}/none.sock")
    async with Service(process.address) as service:
        assert not await service.ready()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.generate(prompt_of(4), 3)
        assert fails_with(refused.value) == (grpc.StatusCode.UNAVAILABLE, "WORKER_LOST")


async def test_a_worker_with_another_pool_size_takes_over(hasty: SchedulerSeat) -> None:
    async with rig_at(hasty) as rig:
        rig.fake.step_delay = 0.002
        tasks = await begin_all(rig)
        await rig.fake.restart(replace(SMALL, num_blocks=40, block_size=3))
        await check_whole(tasks)
        assert (await rig.service.stats()).block_size == 3


async def test_writing_to_a_stream_that_has_just_ended_is_a_lost_worker_and_no_crash() -> None:
    """gRPC raises InvalidStateError from a write whose stream ended before anybody read its status."""
    fake = FakeWorker(SMALL)
    address = await fake.start()
    async with grpc.aio.insecure_channel(address) as channel:
        call = worker_client._stub(channel).Run()
        await call.write(worker_pb2.RunRequest(hello=handshake.hello(7, fake.epoch)))
        assert (await call.read()).accepted.session_id == 7
        await fake.break_stream()
        await until(call.done)
        with pytest.raises(plan_sender.LostSessionError):
            await plan_sender.write(call, worker_pb2.RunRequest(plan=worker_pb2.StepPlan()))
    await fake.die()


class LoadingWorker(FakeWorker):
    """Answers its first questions with LOADING."""

    asked, loading_for = 0, 8

    async def GetCapacity(self, request: object, context: object) -> worker_pb2.GetCapacityResponse:  # noqa: N802
        self.asked += 1
        if self.asked <= self.loading_for:
            raise Unavailable("the worker is loading its model", reason="LOADING")
        return await super().GetCapacity(request, context)


class Ready(asyncio.Event):
    """A listener that waits for the session."""

    def worker_ready(self, session: Session, capacity: worker_pb2.GetCapacityResponse) -> None:
        self.set()

    def worker_lost(self, session: Session, reason: str) -> None: ...
    def worker_answered(self, session: Session, answers: list[Answer]) -> None: ...
    def worker_oddity(self, kind: str) -> None: ...


async def test_a_worker_that_loads_is_asked_again_without_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With pauses of an hour for everything else the session still comes."""
    monkeypatch.setattr(worker_client, "_FIRST_BACKOFF", 3600.0)
    monkeypatch.setattr(worker_client, "_LAST_BACKOFF", 3600.0)
    fake, ready = LoadingWorker(SMALL), Ready()
    client = WorkerClient(LinkSettings(await fake.start()), ready, time.monotonic)
    running = asyncio.create_task(client.run())
    await asyncio.wait_for(ready.wait(), 60)
    assert fake.asked == fake.loading_for + 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await fake.die()

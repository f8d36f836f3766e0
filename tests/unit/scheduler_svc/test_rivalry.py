"""Two schedulers at one worker: they change ever more seldom, and somebody is told."""

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from octavo.worker.v1 import worker_pb2
from scheduler_svc.rivalry import LONGEST_PAUSE, Rivalry
from scheduler_svc.session import Answer, Session
from scheduler_svc.worker_client import LinkSettings, WorkerClient
from tests.e2e.rig import until
from tests.unit.worker.live_worker import live_worker


def test_a_take_over_costs_nothing_and_others_behind_it_ever_more() -> None:
    rivalry = Rivalry()
    pauses = [rivalry.ended(True, 0.1) for _ in range(9)]
    assert pauses == [0.0, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert rivalry.ended(True, LONGEST_PAUSE + 0.5) == LONGEST_PAUSE


def test_a_session_that_ends_otherwise_or_was_long_begins_anew() -> None:
    for taken_over, seconds in ((False, 0.1), (True, 100.0)):
        rivalry = Rivalry()
        for _ in range(5):
            rivalry.ended(True, 0.1)
        assert rivalry.ended(taken_over, seconds) == 0.0
        assert not rivalry.has_begun


def test_somebody_is_told_once() -> None:
    rivalry, told = Rivalry(), 0
    for _ in range(6):
        rivalry.ended(True, 0.1)
        told += rivalry.has_begun
    assert told == 1


class Heard:
    """A listener that counts sessions."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def worker_ready(self, session: Session, capacity: worker_pb2.GetCapacityResponse) -> None:
        pass

    def worker_lost(self, session: Session, reason: str) -> None:
        self.lost.append(reason)

    def worker_answered(self, session: Session, answers: list[Answer]) -> None:
        pass

    def worker_oddity(self, kind: str) -> None:
        raise AssertionError(kind)


async def test_schedulers_that_take_a_worker_from_one_another_say_so(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with live_worker(tiny_llama) as worker:
        worker.servicer._capacity.block_size = 4  # type: ignore[union-attr]  # the rest of a real capacity
        heard = [Heard(), Heard()]
        settings = LinkSettings(worker.address, liveness_seconds=60)  # no session ends for another reason
        clients = [WorkerClient(settings, ear, time.monotonic) for ear in heard]
        runs = [asyncio.create_task(client.run()) for client in clients]
        try:
            await until(lambda: all(len(ear.lost) >= 3 for ear in heard), 60)
        finally:
            for run in runs:
                run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*runs)
    said = [record.getMessage() for record in caplog.records if "another scheduler" in record.getMessage()]
    line = (
        f"another scheduler takes the worker at {worker.address} from this one: give each a worker of its own"
    )
    assert said == [line, line]
    assert all("newer session" in reason for ear in heard for reason in ear.lost[:3])

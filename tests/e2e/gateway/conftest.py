"""Fixtures of the gateway's tests: one scheduler and one gateway a module, a fresh fake worker a test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from scheduler_svc.text import TextModel, load_text_model
from tests.e2e.gateway.door import Door, door_at
from tests.e2e.processes import Processes, ServiceProcess
from tests.e2e.rig import Rig, SchedulerSeat, rig_at, seat_scheduler


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama)


@pytest.fixture(scope="module")
def gateway(shared_processes: Processes, seat: SchedulerSeat) -> ServiceProcess:
    return shared_processes.gateway(seat.process.address)


@pytest.fixture(scope="module")
def text(tiny_llama: Path) -> Iterator[TextModel]:
    model = load_text_model(tiny_llama)
    yield model
    model.close()


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat) as made:
        yield made


@pytest.fixture
async def door(gateway: ServiceProcess, rig: Rig, text: TextModel) -> AsyncIterator[Door]:
    async with door_at(gateway, rig, text) as made:
        yield made

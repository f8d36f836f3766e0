"""A running stub scheduler for the client's tests."""

from collections.abc import Iterator

import pytest

from tests.unit.client.stub import StubScheduler


@pytest.fixture
def stub() -> Iterator[StubScheduler]:
    scheduler = StubScheduler()
    scheduler.start()
    yield scheduler
    scheduler.stop()

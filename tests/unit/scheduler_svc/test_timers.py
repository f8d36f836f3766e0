"""Queue deadlines and the alarm."""

import asyncio
import time

from scheduler_svc.timers import Alarm, QueueDeadlines
from tests.unit.scheduler_svc.test_requests import record


def test_a23_deadlines_come_soonest_first_and_only_for_what_waits() -> None:
    deadlines = QueueDeadlines()
    records = [record(number) for number in range(1, 6)]
    for one, when in zip(records, [5.0, 3.0, 4.0, 1.0, None], strict=True):
        one.queue_deadline = when
        deadlines.add(one)
    records[3].admitted_at = 0.5
    records[1].ended = True
    assert deadlines.next() == 4.0
    assert deadlines.due(3.9) == []
    assert deadlines.due(5.0) == [records[2], records[0]]
    assert deadlines.next() is None


def test_a29_requests_that_no_longer_wait_leave_no_residue() -> None:
    deadlines = QueueDeadlines()
    for number in range(1, 20_000):
        one = record(number)
        one.queue_deadline = 1e9 + number
        deadlines.add(one)
        one.ended = True
    assert len(deadlines) <= 2048


async def test_the_alarm_rings_for_the_nearest_time_asked() -> None:
    rung = asyncio.Event()
    alarm = Alarm(time.monotonic, rung.set)
    alarm.set(time.monotonic() + 3600)
    alarm.set(time.monotonic() + 0.01)
    await asyncio.wait_for(rung.wait(), 5)
    rung.clear()
    alarm.set(time.monotonic() + 0.01)
    alarm.set(None)
    await asyncio.sleep(0.03)
    assert not rung.is_set()

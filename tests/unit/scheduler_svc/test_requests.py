"""Live ids and the queue's bounds."""

import numpy as np
import pytest

from octavo.errors import AlreadyExists, ResourceExhausted
from scheduler_svc.core.plan import NewRequest, SeqId
from scheduler_svc.requests import QueueLimits, Record, Requests
from scheduler_svc.streams import BacklogLimits, Outbox


def record(number: int, length: int = 10, name: str = "", outbox: Outbox | None = None) -> Record:
    return Record(
        request_id=name or f"r{number}",
        request=NewRequest(SeqId(number), np.zeros(length, np.int32)),
        outbox=outbox or Outbox(BacklogLimits()),
        emitters=[None],
        include_stop_token=False,
        tokens_only=True,
        arrival=0.0,
    )


def test_an_id_names_one_live_request() -> None:
    requests = Requests(QueueLimits())
    first = record(1, name="same")
    requests.add(first)
    with pytest.raises(AlreadyExists, match="same"):
        requests.add(record(2, name="same"))
    requests.remove(first)
    requests.add(record(3, name="same"))
    requests.remove(first)  # again: it is not the one that lives now
    assert len(requests) == 1


def test_the_queue_is_bounded_in_requests_and_admissions_make_room() -> None:
    requests = Requests(QueueLimits(requests=2))
    first = record(1)
    requests.add(first)
    requests.add(record(2))
    with pytest.raises(ResourceExhausted, match="2 requests wait, limit 2") as caught:
        requests.add(record(3))
    assert (caught.value.reason, caught.value.retry_after) == ("QUEUE_FULL", 1.0)
    assert requests.admitted(first, 1.0)
    assert not requests.admitted(first, 2.0), "only the first admission counts"
    requests.add(record(3))
    assert requests.waiting_requests == 2


def test_the_queue_is_bounded_in_tokens_but_takes_one_of_any_length() -> None:
    requests = Requests(QueueLimits(tokens=15))
    requests.add(record(1, length=40))
    with pytest.raises(ResourceExhausted, match="50 prompt tokens would wait, limit 15"):
        requests.add(record(2, length=10))


def test_removal_empties_every_count() -> None:
    requests = Requests(QueueLimits())
    outbox = Outbox(BacklogLimits())
    records = [record(number, outbox=outbox) for number in range(1, 4)]
    for one in records:
        requests.add(one)
    requests.admitted(records[0], 1.0)
    assert sorted(outbox.live) == ["r1", "r2", "r3"]
    for one in records:
        requests.remove(one)
    assert (len(requests), requests.waiting_requests, requests.waiting_tokens, outbox.live) == (
        0,
        0,
        0,
        set(),
    )
    assert requests.by_id("r1") is None
    assert requests.by_seq(1) is None

"""Order and flat size of the waiting queue."""

import numpy as np

from scheduler_svc.core.plan import NewRequest, SeqId
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.waiting_queue import WaitingQueue, rank_of


def sequence(arrival: int, priority: int = 0) -> Sequence:
    prompt = np.ones(1, np.int32)
    request = NewRequest(SeqId(arrival), prompt, priority=priority)
    return Sequence(request, arrival, 0.0, prompt, rank_of(priority, 0.0, 60.0))


def test_priority_then_arrival() -> None:
    queue = WaitingQueue()
    for arrival, priority in enumerate([1, 0, 1, -1, 0]):
        queue.push(sequence(arrival, priority))
    assert [queue.pop().arrival for _ in range(5)] == [3, 1, 4, 0, 2]
    assert queue.head() is None


def test_one_that_comes_back_stands_before_the_younger_ones_of_its_priority() -> None:
    queue = WaitingQueue()
    old = sequence(0)
    for seq in (old, sequence(1), sequence(2, -1)):
        queue.push(seq)
    assert queue.pop().arrival == 2
    assert queue.pop() is old
    queue.push(old)
    queue.push(sequence(3))
    assert [queue.pop().arrival for _ in range(3)] == [0, 1, 3]


def test_a29_removed_ones_do_not_pile_up() -> None:
    queue = WaitingQueue()
    keep = sequence(0)
    queue.push(keep)
    for arrival in range(1, 20_000):
        seq = sequence(arrival)
        queue.push(seq)
        queue.remove(seq)
    assert len(queue) == 1
    assert len(queue._heap) < 200
    assert queue.head() is keep

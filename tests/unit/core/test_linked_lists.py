"""Linked lists in arrays against plain Python lists."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.core.linked_lists import LinkedLists, LruQueue


def as_ids(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=8, unique=True), max_size=12))
def test_lru_queue_keeps_the_order_of_a_list(rounds: list[list[int]]) -> None:
    """Every round takes out those that are in and then appends all of them: some runs, some single ones."""
    queue, model = LruQueue(20), list[int]()
    for values in rounds:
        inside = [value for value in values if value in model]
        queue.discard(as_ids(inside))
        model = [value for value in model if value not in inside]
        queue.append(as_ids(values))
        model += values
        assert queue.count == len(model)
        assert queue.oldest(queue.count).tolist() == model
        assert queue.oldest(len(model) // 2).tolist() == model[: len(model) // 2]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 29), st.integers(0, 3)), max_size=30, unique_by=lambda pair: pair[0]),
    st.data(),
)
def test_buckets_hold_what_was_pushed_and_not_removed(
    pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    lists = LinkedLists(30, 4)
    half = len(pairs) // 2
    for part in (pairs[:half], pairs[half:]):
        lists.push(
            as_ids([element for element, _ in part]), np.array([bucket for _, bucket in part], np.int64)
        )
    removed = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    if removed:
        lists.remove(as_ids([element for element, _ in removed]))
    for bucket in range(4):
        expected = {element for element, of in pairs if of == bucket} - {element for element, _ in removed}
        walked = lists.walk(bucket)
        assert set(walked) == expected
        assert len(walked) == len(expected)
        first = lists.first(np.array([bucket]))[0]
        assert first in expected or (first == lists.end and not expected)


def test_a_long_run_is_cut_out_at_once() -> None:
    queue = LruQueue(1000)
    queue.append(np.arange(1000, dtype=np.int32))
    queue.discard(np.arange(100, 900, dtype=np.int32))
    assert queue.oldest(200).tolist() == [*range(100), *range(900, 1000)]

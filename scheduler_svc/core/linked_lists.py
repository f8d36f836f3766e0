"""Many doubly linked lists over the numbers 0..n-1, kept in two flat arrays.

Owns the links; does not know what an element or a list means. Invariant: an element is in at most one list,
and putting in or taking out k elements costs a few array operations, not k steps of Python.

Layout of `next` and `prev`: elements 0..n-1, then the end mark `end` (= n), then one head a list. A list runs
head -> first -> ... -> end; the end mark is shared by all of them. `LruQueue` has no heads: its one list is a
ring through the end mark.
"""

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.plan import Int32Array

_FEW = 8

Index = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class LinkedLists:
    """Buckets: `push` puts elements at the front of the list that each one names. All arrays are int32."""

    def __init__(self, num_elements: int, num_lists: int) -> None:
        self.end = num_elements
        size = num_elements + 1 + num_lists
        self.next: Int32Array = np.full(size, self.end, np.int32)
        self.prev: Int32Array = np.full(size, self.end, np.int32)
        self._marked = np.zeros(size, np.bool_)

    def first(self, lists: npt.NDArray[np.int64]) -> Int32Array:
        """[k] the first element of each list, `end` for an empty one."""
        return self.next[lists + (self.end + 1)]

    def head(self, list_number: int) -> int:
        """The first element of one list, `end` for an empty one."""
        return int(self.next[self.end + 1 + list_number])

    def walk(self, list_number: int) -> list[int]:
        """All elements of one list, front first."""
        found, at = [], self.head(list_number)
        while at != self.end:
            found.append(at)
            at = int(self.next[at])
        return found

    def push(self, elements: Index, lists: npt.NDArray[np.int64]) -> None:
        """Puts each element at the front of its list. Of several in one list the order is fixed but
        unspecified.
        """
        heads = lists + (self.end + 1)
        while len(elements):
            old = self.next[heads]
            self.next[heads] = elements
            won = self.next[heads] == elements  # of several for one list, the last write stays
            if np.count_nonzero(won) == len(won):
                self._link(elements, heads, old)
                return
            self._link(elements[won], heads[won], old[won])
            elements, heads = elements[~won], heads[~won]

    def push_one(self, element: int, list_number: int) -> None:
        """Puts one element at the front of its list."""
        before = self.end + 1 + list_number
        after = self.next[before]
        self.next[before] = element
        self.next[element], self.prev[element], self.prev[after] = after, before, element

    def remove(self, elements: Index) -> None:
        """Takes elements out of whatever lists they are in, in O(1) each.

        Neighbours that are neighbours in `elements` too are cut out as one run; if some are neighbours in
        another order, which is rare, all go one by one, and so do a few, for which that is cheaper.
        """
        if len(elements) <= _FEW:
            self._remove_one_by_one(elements)
            return
        after = self.next[elements]
        self._marked[elements] = True
        joined = self._marked[after]
        self._marked[elements] = False
        if np.count_nonzero(joined):
            if joined[-1] or (after[:-1] != elements[1:])[joined[:-1]].any():
                self._remove_one_by_one(elements)
                return
            starts = np.concatenate(([True], ~joined[:-1]))
            before, after = self.prev[elements[starts]], after[~joined]
        else:
            before = self.prev[elements]
        self.next[before] = after
        self.prev[after] = before

    def _link(self, elements: Index, before: Index, after: Int32Array) -> None:
        self.next[elements] = after
        self.prev[elements] = before
        self.prev[after] = elements  # writes to prev[end] are harmless: nobody reads it

    def _remove_one_by_one(self, elements: Index) -> None:
        following, preceding = self.next, self.prev
        for element in elements.tolist():
            before, after = preceding[element], following[element]
            following[before] = after
            preceding[after] = before


class LruQueue(LinkedLists):
    """One circular list, oldest first: the end mark is its head, `next[end]` the oldest, `prev[end]` the
    newest.
    """

    def __init__(self, num_elements: int) -> None:
        super().__init__(num_elements, 0)
        self.count = 0

    def append(self, elements: Index) -> None:
        """Puts elements in, each newer than the one before."""
        if not len(elements):
            return
        newest = self.prev[self.end]
        self.prev[elements[0]] = newest
        self.next[newest] = elements[0]
        self.prev[elements[1:]] = elements[:-1]
        self.next[elements[:-1]] = elements[1:]
        self.next[elements[-1]] = self.end
        self.prev[self.end] = elements[-1]
        self.count += len(elements)

    def discard(self, elements: Index) -> None:
        """Takes elements out of the middle."""
        if len(elements):
            self.remove(elements)
            self.count -= len(elements)

    def take_oldest(self, count: int) -> Int32Array:
        """[count] the oldest elements, taken out; there must be so many."""
        oldest = self.oldest(count)
        if count:
            after = self.next[oldest[-1]]
            self.next[self.end] = after
            self.prev[after] = self.end
            self.count -= count
        return oldest

    def oldest(self, count: int) -> Int32Array:
        """[count] the oldest elements, still in the queue; there must be so many."""
        assert count <= self.count
        found, at, following = [], self.end, self.next
        for _ in range(count):
            at = int(following[at])
            found.append(at)
        return np.array(found, np.int32)

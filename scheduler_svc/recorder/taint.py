"""Which rows of a replay on a live worker still hold what they held when the log was made.

Owns the spread of a difference over rows and blocks; knows neither worker nor core. Invariant: a row is
sound only if every token and every block that it read since its set-up is as recorded.
"""

import numpy as np

from scheduler_svc.core.plan import StepPlan


class Taint:
    """One session. A row whose token differed is unsound, and so are those that read what it wrote after."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._rows: set[int] = set()
        self._blocks: set[int] = set()
        self._tables: dict[int, dict[int, int]] = {}

    def follow(self, plan: StepPlan) -> None:
        """A plan leaves for the worker."""
        for row in [*plan.released_rows.tolist(), *(setup.row for setup in plan.setups)]:
            self._rows.discard(row)
            self._tables.pop(row, None)
        for row, offset, block in zip(
            plan.table_rows.tolist(), plan.table_offsets.tolist(), plan.table_blocks.tolist(), strict=True
        ):
            self._tables.setdefault(row, {})[offset] = block
        for source, target in plan.copy_pairs.reshape(-1, 2).tolist():
            self._mark(target, source in self._blocks)
        written = self._written(plan)
        for row, (blocks, begun) in written.items():
            if row not in self._rows:
                self._blocks.difference_update(begun)
                if not self._blocks.isdisjoint(self._tables.get(row, {}).values()):
                    self._rows.add(row)
            if row in self._rows:
                self._blocks.update(blocks)

    def differs(self, row: int, later: "list[StepPlan]") -> None:
        """The row sampled another token than recorded. later: plans sent since, which used that token."""
        self._rows.add(row)
        for plan in later:
            self._blocks.update(self._written(plan).get(row, (set(), set()))[0])

    def sound(self, row: int) -> bool:
        return row not in self._rows

    def _mark(self, block: int, wrong: bool) -> None:
        (self._blocks.add if wrong else self._blocks.discard)(block)

    def _written(self, plan: StepPlan) -> dict[int, tuple[set[int], set[int]]]:
        """For each row the blocks that it writes, and those of them that it begins."""
        found: dict[int, tuple[set[int], set[int]]] = {}
        ends = np.cumsum(plan.query_lens)
        for row, end, count in zip(plan.rows.tolist(), ends.tolist(), plan.query_lens.tolist(), strict=True):
            slots = plan.slot_mapping[end - count : end]
            begun = slots[slots % self._block_size == 0] // self._block_size
            found[row] = (set((slots // self._block_size).tolist()), set(begun.tolist()))
        return found

"""The steps that were planned and not yet answered.

Owns what each step meant when it was planned, and who depends on what it writes; does not know blocks'
states. Invariant: steps are taken in the order in which they were planned, whatever the order of the answers;
a step keeps its own row -> sequence map, so a row may be reused while its old step is in flight.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from scheduler_svc.core.batch_builder import Chunk
from scheduler_svc.core.plan import Int32Array, Int64Array, StepId, StepResult

Tenure = tuple[int, int]
"""(row, tenure number): a sequence's stay in a row."""


@dataclass(slots=True, eq=False)
class Step:
    """R rows, S of them sampling. num_releases: how many stays had ended when it was planned.

    full_rows, full_lens: decode rows that filled a block, and their context lengths then.
    """

    step_id: StepId
    rows: Int32Array
    tenures: Int64Array
    sample_rows: Int64Array
    sample_tenures: Int64Array
    num_releases: int
    full_rows: Int64Array
    full_lens: Int32Array
    chunks: list[Chunk]

    def tenure_of(self, row: int) -> Tenure | None:
        """The stay that this row stood for, None when the step does not hold the row."""
        for rows, tenures in ((self.rows, self.tenures), (self.sample_rows, self.sample_tenures)):
            at = np.flatnonzero(rows == row)
            if len(at):
                return row, int(tenures[at[0]])
        return None


class InFlight:
    """A queue of steps, oldest first, with the answers that came too early."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque()
        self._answers: dict[int, StepResult] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def push(self, step: Step) -> None:
        self._steps.append(step)

    def answer(self, result: StepResult) -> bool:
        """Takes in an answer. False if no step waits for it: unknown, repeated, or of an older session."""
        for step in self._steps:
            if step.step_id == result.step_id and result.step_id not in self._answers:
                self._answers[result.step_id] = result
                return True
        return False

    def answered(self) -> tuple[Step, StepResult] | None:
        """The oldest step with its answer, if that is there; it stays in the queue until `pop`."""
        if not self._answers or self._steps[0].step_id not in self._answers:
            return None
        return self._steps[0], self._answers[self._steps[0].step_id]

    def pop(self) -> None:
        step = self._steps.popleft()
        self._answers.pop(step.step_id, None)

    def chunks(self) -> list[tuple[Step, Chunk]]:
        return [(step, chunk) for step in self._steps for chunk in step.chunks]

    def tainted_by(self, failed: set[Tenure]) -> tuple[set[Tenure], list[tuple[Step, Chunk]]]:
        """All stays whose content is wrong when the failed ones' is, and their chunks in flight.

        A stay that hit a block which a tainted chunk was still to write is tainted itself, so is one that
        forked off a tainted chunk, and so on.
        """
        tainted = set(failed)
        wrong_blocks: set[int] = set()
        found: list[tuple[Step, Chunk]] = []
        rest, before = self.chunks(), -1
        while len(found) > before:
            before = len(found)
            left = []
            for step, chunk in rest:
                stay = (chunk.row, chunk.tenure)
                if stay in tainted or not wrong_blocks.isdisjoint(chunk.pending.tolist()):
                    tainted.update((stay, *chunk.forks))
                    wrong_blocks.update(block for part in chunk.published for block in part.tolist())
                    found.append((step, chunk))
                else:
                    left.append((step, chunk))
            rest = left
        return tainted, found

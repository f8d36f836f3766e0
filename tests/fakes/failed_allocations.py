"""Watches every admission that the core tries: one that fails must have changed nothing (I8).

Owns the patch; knows no scenario. Invariant: the watched code is the core's own, before and after.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from scheduler_svc.core.checks import changed_by_failure, ledger_of
from scheduler_svc.core.prefill import PrefillPass
from scheduler_svc.core.sequence import Sequence


@contextmanager
def watched_admissions() -> Iterator[list[bool]]:
    """The outcomes of all admissions tried meanwhile. A broken one raises AssertionError."""
    original, outcomes = PrefillPass._admit, []

    def admit(self: PrefillPass, seq: Sequence) -> bool:
        self.session.manager.settle()
        before = ledger_of(self.session, self.counters)
        admitted = original(self, seq)
        outcomes.append(admitted)
        if not admitted:
            changed = changed_by_failure(before, ledger_of(self.session, self.counters))
            assert not changed, changed
        return admitted

    PrefillPass._admit = admit  # type: ignore[method-assign]
    try:
        yield outcomes
    finally:
        PrefillPass._admit = original  # type: ignore[method-assign]

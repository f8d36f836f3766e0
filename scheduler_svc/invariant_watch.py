"""The core's invariants, checked on a live service.

Owns when they are checked and what is said when one is broken; knows no invariant. Invariant: a broken one is
counted each time and logged once, and changes nothing about what is served.
"""

import logging
from collections.abc import Iterable

from scheduler_svc.core.checks import changed_by_failure
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.metrics import ShellMetrics

_log = logging.getLogger(__name__)
AUDIT_SECONDS = 60.0
AUDITED_BLOCKS = 16_384
"""An audit of a larger pool would hold an idle loop for too long."""
MOST_LOGGED = 100
"""Different violations that are logged; all are counted."""


class InvariantWatch:
    """when: every-step checks each plan and the whole state after it; idle audits now and then while nothing
    runs; off checks nothing.
    """

    def __init__(self, metrics: ShellMetrics, when: str) -> None:
        self._metrics = metrics
        self._when = when
        self._next_audit = 0.0
        self._logged: set[str] = set()

    def schedule(self, core: Scheduler, now: float) -> StepPlan | None:
        """The core's next plan, checked if each one is to be."""
        if self._when != "every-step":
            return core.schedule(now)
        before = core.ledger()
        plan = core.schedule(now)
        if plan is None:
            self._report(changed_by_failure(before, core.ledger()))
        else:
            self._report(core.check_plan(plan))
        self._audit(core)
        return plan

    def idle(self, core: Scheduler, num_blocks: int, now: float) -> None:
        """Nothing runs: a good moment for a walk over all blocks."""
        if self._when != "idle" or now < self._next_audit or num_blocks > AUDITED_BLOCKS:
            return
        self._next_audit = now + AUDIT_SECONDS
        self._audit(core)

    def _audit(self, core: Scheduler) -> None:
        found = core.audit()
        self._metrics.leaked_blocks = found.leaked
        self._report(found.violations)

    def _report(self, violations: Iterable[str]) -> None:
        for violation in violations:
            self._metrics.invariant_broken(violation)
            if violation not in self._logged and len(self._logged) < MOST_LOGGED:
                self._logged.add(violation)
                _log.error("invariant broken: %s", violation)

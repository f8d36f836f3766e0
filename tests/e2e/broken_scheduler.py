"""A scheduler whose core raises at the first step that it plans: `python -m tests.e2e.broken_scheduler ...`.

Owns the planted bug; knows no more of the service. Invariant: until a request comes it behaves like the real
one.
"""

import sys

from scheduler_svc.__main__ import main
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.scheduler import Scheduler


def _broken(self: Scheduler, now: float) -> StepPlan | None:
    if self.has_work():
        raise LookupError("planted")
    return None


if __name__ == "__main__":
    Scheduler.schedule = _broken  # type: ignore[method-assign]
    sys.exit(main())

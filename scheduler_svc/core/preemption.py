"""Who gives up its blocks when there are too few.

Owns the choice of the victim; does not know blocks. Invariant: the choice depends on priority and arrival
only, so the best-placed sequence is never preempted while another one runs, and always comes to its end.
"""

from collections.abc import Iterable

from scheduler_svc.core.sequence import Sequence


def choose_victim(running: Iterable[Sequence]) -> Sequence:
    """Of the lowest priority (the numerically largest) the latest arrival."""
    return max(running, key=lambda seq: seq.order)

"""How long a worker is left alone that another scheduler takes again and again.

Owns the counting of lost sessions; knows no connection. Invariant: the first take-over costs no pause, for it
is what a restart looks like; after that two schedulers at one worker change ever more seldom, and each has it
for as long as the other waits.
"""

_FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
_LONG_SECONDS = 4 * LONGEST_PAUSE


class Rivalry:
    """Belongs to one worker's link."""

    def __init__(self) -> None:
        self._taken = 0

    def ended(self, taken_over: bool, seconds: float) -> float:
        """A session that had lasted so many seconds is over; returns the seconds to wait, 0 for none."""
        if not taken_over:
            self._taken = 0
        elif seconds > _LONG_SECONDS:
            self._taken = 1
        else:
            self._taken += 1
        return 0.0 if self._taken < 2 else float(min(LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (self._taken - 2)))

    @property
    def has_begun(self) -> bool:
        """Whether the last one to end was the second in a row, from when on somebody should know."""
        return self._taken == 2

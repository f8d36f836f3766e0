"""What it costs to bring a preempted sequence back: computed again, or moved out and in.

Owns the rates that answers teach, and the two estimates; does not know sequences or blocks. Invariant: it is
a pure function of the answers taken in, so a log of them gives the same choices.

Recomputing costs the tokens that the cache will not give back, at the measured prefill rate. Swapping costs
the bytes once each way, at the measured rates of the transfers. Rates are exponentially weighted; a new
session begins with guesses that weigh so little that the first measurement replaces them.
"""

from dataclasses import dataclass, field

KEPT = 0.9
"""What an earlier measurement still weighs after a new one."""
GUESSED_TOKENS_PER_SECOND = 4_000.0
GUESSED_BYTES_PER_SECOND = 4e9
_GUESS_SECONDS = 1e-6
"""A guess weighs like so long a measurement."""
_LEAST_PART = 0.1
"""At least this part of a step with prefill tokens is theirs."""


class Rate:
    """Units a second: sums of units and of seconds, older ones fading."""

    def __init__(self, guess: float) -> None:
        self._units = guess * _GUESS_SECONDS
        self._seconds = _GUESS_SECONDS

    @property
    def per_second(self) -> float:
        return self._units / self._seconds

    def observe(self, units: float, seconds: float) -> None:
        """Measurements of nothing, or of no time, teach nothing."""
        if units > 0:
            self.observe_part(units, seconds)

    def observe_part(self, units: float, whole: float) -> None:
        """The same for units of so many, of which none is a measurement too."""
        if whole > 0:
            self._units = KEPT * self._units + units
            self._seconds = KEPT * self._seconds + whole


@dataclass(slots=True)
class CostModel:
    """Seconds, tokens and bytes. found: tokens found again for each that was findable at the preemption."""

    prefill: Rate = field(default_factory=lambda: Rate(GUESSED_TOKENS_PER_SECOND))
    out: Rate = field(default_factory=lambda: Rate(GUESSED_BYTES_PER_SECOND))
    back: Rate = field(default_factory=lambda: Rate(GUESSED_BYTES_PER_SECOND))
    found: Rate = field(default_factory=lambda: Rate(0.5))
    decode_seconds: float = 0.0

    def recompute_seconds(self, tokens: int, findable: int) -> float:
        """Of a sequence with that many computed tokens, `findable` of them in blocks the index holds."""
        expected = min(1.0, self.found.per_second) * findable
        return (tokens - expected) / self.prefill.per_second

    def swap_seconds(self, num_bytes: int) -> float:
        return num_bytes / self.out.per_second + num_bytes / self.back.per_second

    def observe_found(self, tokens: int, findable: int) -> None:
        """What the index still held of a sequence that comes back by recompute."""
        self.found.observe_part(min(tokens, findable), findable)

    def observe_decode(self, seconds: float) -> None:
        """A step of decodes alone."""
        if seconds > 0:
            before = self.decode_seconds or seconds
            self.decode_seconds = KEPT * before + (1 - KEPT) * seconds

    def observe_prefill(self, tokens: int, with_decodes: bool, seconds: float) -> float:
        """A step that computed that many prefill tokens; returns the seconds that they cost: what it took
        longer than decodes alone.
        """
        own = seconds - (self.decode_seconds if with_decodes else 0.0)
        own = max(own, _LEAST_PART * seconds)
        self.prefill.observe(tokens, own)
        return own

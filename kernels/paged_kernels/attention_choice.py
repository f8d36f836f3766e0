"""Which attention is the fastest, from measured seconds.

Owns the rule; measures nothing. Pure. Invariant: the same seconds give the same choice, and the one that runs
anyway stays unless another is faster by more than a measurement's noise.
"""

from collections.abc import Mapping, Sequence

STAYS_WITHIN = 0.03
"""A challenger within this part of the present one does not replace it."""

Seconds = Mapping[str, Sequence[float]]
"""Of each backend, one number a case, all of them in the same order of cases."""


def relative_times(seconds: Seconds) -> dict[str, float]:
    """Mean over the cases of a backend's time by the fastest backend's: 1 for one that always wins."""
    fastest = [min(times) for times in zip(*seconds.values(), strict=True)]
    return {
        name: sum(mine / best for mine, best in zip(times, fastest, strict=True)) / len(fastest)
        for name, times in seconds.items()
    }


def choose(seconds: Seconds, present: str | None) -> str:
    """The backend with the least relative time; `present` if it is within STAYS_WITHIN of that.

    seconds: of one backend or more. Ties go to the first.
    """
    relative = relative_times(seconds)
    best = min(relative, key=lambda name: relative[name])
    if present in relative and relative[present] <= relative[best] * (1 + STAYS_WITHIN):
        return present
    return best


def reason(seconds: Seconds, cases: Sequence[str]) -> str:
    """What was measured: "measured us: triton 70, flash-attn-4 88 (64 x 1024); ..."."""
    parts = [
        ", ".join(f"{name} {times[number] * 1e6:.0f}" for name, times in seconds.items()) + f" ({case})"
        for number, case in enumerate(cases)
    ]
    return f"measured us: {'; '.join(parts)}"

"""The settings under which the same prompts must give the same tokens, eight of them for seven switches.

Owns the covering array and what each switch means as flags; knows no process. Invariant: for every two
switches, all four combinations occur (an orthogonal array of strength 2; Rao, 1947).
"""

from dataclasses import dataclass, fields
from itertools import combinations, product


@dataclass(frozen=True)
class Setting:
    """crowd: all prompts at once, else one after the other. deep: three steps in flight, else one. killed:
    the worker gets kill -9 midway. swaps: the worker has a host tier and who gives way is swapped out, else
    computed again.
    """

    crowd: bool
    cache: bool
    chunked: bool
    small_pool: bool
    deep: bool
    killed: bool
    swaps: bool

    @property
    def name(self) -> str:
        words = (
            "crowd" if self.crowd else "alone",
            "cache" if self.cache else "no cache",
            "chunked" if self.chunked else "whole",
            "small pool" if self.small_pool else "ample pool",
            "depth 3" if self.deep else "depth 1",
            "worker killed" if self.killed else "calm",
            "swap" if self.swaps else "recompute",
        )
        return ", ".join(words)

    def scheduler_flags(self, chunk: int) -> list[str]:
        """Flags of the scheduler; chunk: new tokens of a row in a step when chunked."""
        flags = ["--depth", "3" if self.deep else "1", "--worker-grace-seconds", "300"]
        flags += ["--preemption", "swap" if self.swaps else "recompute"]
        if not self.cache:
            flags.append("--no-prefix-cache")
        if self.chunked:
            flags += ["--max-prefill-chunk", str(chunk)]
        return flags


def covering_settings() -> list[Setting]:
    """The eight rows, calm and ample ones first, so that workers can be shared."""
    rows = [Setting(a, b, a ^ b, c, a ^ c, b ^ c, a ^ b ^ c) for a, b, c in product((True, False), repeat=3)]
    return sorted(rows, key=lambda row: (row.killed, row.small_pool, not row.crowd))


def uncovered_pairs(settings: list[Setting]) -> list[str]:
    """Pairs of switch values that no setting has; empty when the array covers all."""
    names = [field.name for field in fields(Setting)]
    missing = []
    for first, second in combinations(names, 2):
        seen = {(getattr(row, first), getattr(row, second)) for row in settings}
        missing += [
            f"{first}={values[0]}, {second}={values[1]}"
            for values in product((True, False), repeat=2)
            if values not in seen
        ]
    return missing

"""The rule that says whether two token sequences are equal enough, and the budget of ties.

Owns the tie rule and the count; knows neither model nor service. Invariant: nothing passes but equality,
or a tie that the reference's own logits show, and at most one tie in 2,000 tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

TIE_DEVIATIONS = 1e-4
TOKENS_PER_TIE = 2000

Logits = Callable[[Sequence[int], Sequence[int]], npt.NDArray[np.float64]]
"""(prompt, output) -> the reference's logits [len(output), vocab], each given the output before it
(teacher-forced).
"""


class Difference(NamedTuple):
    """Where an output leaves the reference. gap: between both tokens' logits, in standard deviations."""

    setting: str
    prompt: int
    position: int
    token: int
    reference_token: int
    gap: float


def differences(
    setting: str, prompt: int, output: Sequence[int], logits: npt.NDArray[np.float64]
) -> list[Difference]:
    """Every position whose token is not the reference's choice, given the output's own tokens before it."""
    found = []
    for position in np.flatnonzero(logits.argmax(-1) != np.asarray(output)):
        row = logits[position]
        best, token = int(row.argmax()), output[position]
        gap = float((row[best] - row[token]) / row.std())
        found.append(Difference(setting, prompt, int(position), token, best, gap))
    return found


@dataclass
class Verdict:
    """What all runs of one family add up to. `check` raises when they do not pass."""

    family: str
    tokens: int = 0
    outputs: int = 0
    equal_outputs: int = 0
    ties: list[Difference] = field(default_factory=list)
    errors: list[Difference] = field(default_factory=list)
    short: list[str] = field(default_factory=list)

    def add(
        self,
        setting: str,
        prompts: Sequence[Sequence[int]],
        outputs: Sequence[Sequence[int]],
        length: int,
        logits: Logits,
    ) -> None:
        """Judges one run: outputs[i] answers prompts[i] and has `length` tokens."""
        for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            self.outputs += 1
            self.tokens += len(output)
            if len(output) != length:
                self.short.append(f"{setting}: prompt {index} has {len(output)} tokens, not {length}")
                continue
            found = differences(setting, index, output, logits(prompt, output))
            self.equal_outputs += not found
            self.ties += [one for one in found if one.gap < TIE_DEVIATIONS]
            self.errors += [one for one in found if one.gap >= TIE_DEVIATIONS]

    @property
    def allowed_ties(self) -> int:
        return self.tokens // TOKENS_PER_TIE

    def check(self) -> None:
        """Raises AssertionError with what is wrong."""
        assert self.tokens, f"{self.family}: nothing was compared"
        assert not self.short, f"{self.family}: {self.short[:3]}"
        assert not self.errors, f"{self.family}: {len(self.errors)} tokens differ, first {self.errors[:3]}"
        ties = len(self.ties)
        assert ties <= self.allowed_ties, (
            f"{self.family}: {ties} ties in {self.tokens} tokens: {self.ties[:3]}"
        )

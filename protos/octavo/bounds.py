"""The bounds of a request's numbers, for the doors that refuse one before the scheduler sees it.

Owns the numbers by the names of the Python client, and their words; knows no message. Invariant: the
scheduler refuses what is out of them too (a test compares): a door may only be earlier, never narrower.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """From low to high, both inclusive unless `above`; high None: the scheduler's settings decide."""

    low: int | float
    high: int | float | None
    above: bool = False

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low}"
        return f"{'(' if self.above else '['}{self.low}, {self.high}]"


MAX_TOKENS = 1 << 20
WHOLE: dict[str, Bounds] = {
    "n": Bounds(1, None),
    "top_k": Bounds(0, 1 << 20),
    "seed": Bounds(0, (1 << 64) - 1),
    "max_tokens": Bounds(1, MAX_TOKENS),
    "min_tokens": Bounds(0, MAX_TOKENS),
    "logprobs": Bounds(0, 20),
    "prompt_logprobs": Bounds(0, 20),
    "priority": Bounds(-(1 << 31), (1 << 31) - 1),
    "token_ids": Bounds(0, (1 << 31) - 1),
    "stop_token_ids": Bounds(0, (1 << 31) - 1),
}
REAL: dict[str, Bounds] = {
    "temperature": Bounds(0, 100),
    "top_p": Bounds(0, 1, above=True),
    "min_p": Bounds(0, 1),
    "presence_penalty": Bounds(-2, 2),
    "frequency_penalty": Bounds(-2, 2),
    "repetition_penalty": Bounds(0, 10, above=True),
    "logit_bias": Bounds(-100, 100),
    "queue_timeout": Bounds(0, 86_400, above=True),
}
ALL = WHOLE | REAL


def refusal(name: str, value: object, where: str = "", own: Bounds | None = None) -> str:
    """Why a value cannot be, in one line: `top_k: -5 is out of [0, 1048576]`.

    where: the path that the message begins with, if it is not the name. own: the bounds of a door that takes
    more. A value of another kind is shown, so this is for numbers alone and never for a prompt.
    """
    found, kind = own or ALL[name], "whole number" if name in WHOLE else "number"
    shown, closed = f"{value!r:.60}", found.high is not None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (name in REAL or isinstance(value, int)):
        words = f"{shown} is {'out of' if closed else 'not'} {found}"
    else:
        words = f"{shown} is no {kind}, must be {'in ' if closed else ''}{found}"
    return f"{where or name}: {words}"

"""How every program reads its command line, and the words of its refusals.

Owns the parser and the checks of single values; knows no program's flags. Invariant: a bad command line ends
the program with status 2 and one line on stderr: the flag, its value, and what it must be.
"""

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from octavo.transport import require_address

USAGE_STATUS = 2
_LONGEST_SHOWN = 80
_OF_ARGUMENT = re.compile(r"argument (\S+): (.*)", re.DOTALL)
_TEXTS = (("expected", "needs a value"), ("ignored explicit argument", "takes no value"))


class Parser(argparse.ArgumentParser):
    """argparse's, without its usage before an error and without abbreviated flags."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """Ends the program with status 2 and one line."""
        self.exit(USAGE_STATUS, f"{self.prog}: {' '.join(_plain(message).split())}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, wrong(value, f"one of {', '.join(action.choices)}"))


def wrong(value: object, limit: str) -> str:
    """`VALUE: must be LIMIT`; a long value is cut."""
    return f"{shown(value)}: must be {limit}"


def shown(value: object) -> str:
    """A value in a message."""
    text = str(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def whole(low: int, high: int | None = None, word: str = "") -> Callable[[str], int | str]:
    """The type of a flag that takes a whole number, or a word of its own."""

    def convert(text: str) -> int | str:
        if word and text == word:
            return word
        digits = text.removeprefix("-")
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None
        if value is None or value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(wrong(text, _numbers("whole number", low, high, word)))
        return value

    return convert


def real(low: float, high: float | None = None, *, above: bool = False) -> Callable[[str], float]:
    """The type of a flag that takes a finite number from low to high, or above low."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        inside = math.isfinite(value) and (value > low or (value == low and not above))
        if not inside or (high is not None and value > high):
            raise argparse.ArgumentTypeError(wrong(text, limit_words("number", low, high, above)))
        return value

    return convert


def address(text: str) -> str:
    """The type of a flag that names a service."""
    try:
        require_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shown(text)}: {error}") from None
    return text


def limit_words(kind: str, low: float | None, high: float | None, above: bool = False) -> str:
    """A range in words: `a whole number from 1 to 4`."""
    if low is None:
        return f"a {kind}" if high is None else f"a {kind} of at most {high:.12g}"
    if above:
        return f"a {kind} above {low:.12g}" + ("" if high is None else f" and at most {high:.12g}")
    return f"a {kind} of at least {low:.12g}" if high is None else f"a {kind} from {low:.12g} to {high:.12g}"


def _numbers(kind: str, low: int, high: int | None, word: str) -> str:
    if high is not None and high >= 10**12:
        text = f"a {kind} from {low} to {high}"
    else:
        text = limit_words(kind, low, high)
    return f"{text} or {word}" if word else text


def _plain(message: str) -> str:
    """argparse's words with the flag first."""
    found = _OF_ARGUMENT.fullmatch(message)
    if found is not None:
        flag, rest = found.groups()
        for begin, text in _TEXTS:
            if rest.startswith(begin):
                return f"{flag}: {text}"
        return f"{flag} {rest}" if ": must be " in rest else f"{flag}: {rest}"
    what, _, names = message.partition(": ")
    if what == "unrecognized arguments":
        return f"{names}: no such flag or argument; --help lists those there are"
    if what == "the following arguments are required":
        return f"{names}: is required"
    return message

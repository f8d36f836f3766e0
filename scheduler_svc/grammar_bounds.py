"""The numbers of a grammar: how often something is repeated, and what a number is a multiple of.

Owns their limits; knows no request. llguidance bounds what a count costs by fuel, but says it in words of its
own, and a multiple not at all: it walks all remainders. Invariant: the multiples of a grammar that passes
take tenths of a second at most, however they are combined.
"""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal, DecimalTuple
from typing import Any

MOST_DEMANDED = 1 << 16
"""Of what has to come: minItems, minLength, minProperties, and m of {m,n}."""
MOST_ALLOWED = (1 << 31) - 1
"""Of what may come: maxItems, maxLength, maxProperties, and n of {m,n}."""
MOST_MULTIPLE = ((10**4, 10**4), (1000, 10**6), (100, 10**9))
"""Of the least common multiple of all multipleOf of a grammar, as whole numbers at one scale: so much without
its ending zeros, and then so much with them.
"""
_DEMANDED = frozenset({"minItems", "minLength", "minProperties", "minContains"})
_ALLOWED = frozenset({"maxItems", "maxLength", "maxProperties", "maxContains"})
_SHOWN = 30
_LARGEST, _DECIMALS = 10**9 + 1, 9
_COUNT = r"\{\s*(?P<least>\d+)\s*(?:,\s*(?P<most>\d*)\s*)?\}"
_REGEX_STEP = re.compile(rf"\\[xuUpP]\{{[^}}]*\}}|\\.|\[(?:\\.|[^\]\\])*\]|{_COUNT}", re.DOTALL | re.ASCII)
_LARK_STEP = re.compile(
    r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?P<regex>(?:\\.|[^/\\\n])+)/|(?P<json>%json)'
    rf"|~\s*(?P<from>\d+)(?:\s*\.\.\s*(?P<to>\d+))?|{_COUNT}",
    re.ASCII,
)
_DECODER = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal)


def check_schema(text: str) -> None:
    """Raises ValueError, naming the keyword, its value and the limit; also for what is no JSON object."""
    schema = _DECODER.decode(text)
    if not isinstance(schema, dict):
        raise ValueError(f"a schema is an object, not {type(schema).__name__}")
    _check_multiples(list(_multiples(schema)))


def check_regex(text: str) -> None:
    """Raises ValueError, naming the repetition and the limit."""
    for step in _REGEX_STEP.finditer(text):
        _check_count(step.group(), step["least"], step["most"])


def check_lark(text: str) -> None:
    """Raises ValueError as `check_regex`, and as `check_schema` for the schemas in it."""
    multiples, at = list[Decimal](), 0
    while (step := _LARK_STEP.search(text, at)) is not None:
        at = step.end()
        if step["regex"]:
            check_regex(step["regex"])
        elif step["json"]:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            schema, at = _DECODER.raw_decode(text, start)
            multiples += _multiples(schema)
        else:
            least, most = step["least"] or step["from"], step["most"] or step["to"]
            _check_count(" ".join(step.group().split()), least, most)
    _check_multiples(multiples)


def _multiples(value: Any) -> Iterator[Decimal]:
    """The multipleOf of a schema and of what is in it, after a look at its other numbers. Wherever they
    stand, for a $ref may lead there.
    """
    if isinstance(value, list):
        for part in value:
            yield from _multiples(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            if isinstance(part, Decimal):
                _check_keyword(key, part)
            if key == "multipleOf" and isinstance(part, Decimal):
                yield part
            elif key == "pattern" and isinstance(part, str):
                check_regex(part)
            elif key == "patternProperties" and isinstance(part, dict):
                for pattern in part:
                    check_regex(pattern)
            yield from _multiples(part)


def _check_keyword(key: str, value: Decimal) -> None:
    limit = MOST_DEMANDED if key in _DEMANDED else MOST_ALLOWED if key in _ALLOWED else None
    if limit is not None and value > limit:
        raise ValueError(f"{key}: {_shown(value)} is above {limit}, the limit")


def _check_count(shown: str, least: str | None, most: str | None) -> None:
    for digits, limit in ((least, MOST_DEMANDED), (most, MOST_ALLOWED)):
        if digits and (len(digits.lstrip("0")) > len(str(limit)) or int(digits) > limit):
            what = f"{shown:.{_SHOWN}}: {digits:.{_SHOWN}} repetitions"
            raise ValueError(f"{what} are above {limit}, the limit")


def _check_multiples(multiples: list[Decimal]) -> None:
    given = [(int("".join(map(str, parts.digits))), int(parts.exponent)) for parts in map(_parts, multiples)]
    scale, common, short = max([0, *(-exponent for _, exponent in given)]), 1, 1
    for value, (digits, exponent) in zip(multiples, given, strict=True):
        common = math.lcm(common, digits * 10 ** (exponent + scale))
        short = math.lcm(short, int(str(digits).rstrip("0")))
        if not any(short <= without and common <= limit for without, limit in MOST_MULTIPLE):
            raise ValueError(
                f"multipleOf: {_shown(value)}: the least common multiple of all, {common}, is above "
                f"{MOST_MULTIPLE[0][1]}, the limit"
            )


def _parts(value: Decimal) -> DecimalTuple:
    """Raises ValueError for what is no multiple, or one that no limit allows."""
    if not 0 < value < _LARGEST or -int(value.normalize().as_tuple().exponent) > _DECIMALS:
        why = (
            "must be above 0"
            if value <= 0
            else f"has to be below {_LARGEST}, with {_DECIMALS} decimals at most"
        )
        raise ValueError(f"multipleOf: {_shown(value)} {why}")
    return value.normalize().as_tuple()


def _shown(value: Decimal) -> str:
    return f"{value:f}"[:_SHOWN] if value.adjusted() < _SHOWN else f"{value:.3e}"

"""The refusals, worded alike: field, value, limit.

Owns the comparisons and their messages; does not know which message has which field. Invariant: a refusal
names the field's path, also in ErrorInfo, and never shows prompt text, a stop string or a salt.
"""

import math

import numpy as np
from google.protobuf.message import Message

from octavo.errors import InvalidArgument


def refuse(field: str, message: str, reason: str | None = None) -> InvalidArgument:
    """The error `field: message`, to be raised."""
    return InvalidArgument(f"{field}: {message}", reason=reason, field=field)


def whole(field: str, value: int, low: int, high: int) -> int:
    """`value`, in [low, high]."""
    if not low <= value <= high:
        raise refuse(field, f"{value} is out of [{low}, {high}]")
    return value


def real(field: str, value: float, low: float, high: float, *, open_low: bool = False) -> float:
    """`value` (a float32 of the wire), finite and in [low, high], or in (low, high] with `open_low`."""
    inside = math.isfinite(value) and (low < value if open_low else low <= value) and value <= high
    if not inside:
        bracket = "(" if open_low else "["
        raise refuse(field, f"{shown(value)} is out of {bracket}{low:g}, {high:g}]")
    return value


def shown(value: float) -> str:
    """The shortest text of a float32: 1.1, not 1.100000023841858."""
    return str(np.float32(value))


def at_most(field: str, count: int, limit: int, unit: str) -> None:
    """A length or a number of entries."""
    if count > limit:
        raise refuse(field, f"{count} {unit}, the limit is {limit}")


def token_id(field: str, value: int, vocab_size: int) -> int:
    """An id of the vocabulary. A negative id of a careless client arrives here as a huge number."""
    if value >= vocab_size:
        raise refuse(field, f"token id {value} is out of [0, {vocab_size - 1}]", "TOKEN_OUT_OF_VOCABULARY")
    return value


def flag(message: Message, field: str, *, default: bool) -> bool:
    """An optional bool, or its default when absent."""
    return bool(getattr(message, field)) if message.HasField(field) else default


def name(field: str, value: str, limit: int) -> str:
    """A printable name of bounded length; it may be shown in logs."""
    at_most(field, len(value), limit, "characters")
    if not value.isprintable():
        raise refuse(field, "holds a character that cannot be printed")
    return value

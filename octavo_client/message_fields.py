"""Setting a protobuf message's fields from a client's values.

Owns what fits a field, and the words of what does not; knows no message. Invariant: a field is set to the
value that was given, or InvalidArgument names it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo import bounds
from octavo_client.errors import InvalidArgument

_GREATEST = float(np.finfo(np.float32).max)
_SWITCH = "true or false"
_SWITCHES = (
    "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "token_ids_only", "use_prefix_cache",
    "add_generation_prompt", "add_special_tokens",
)  # fmt: skip


def set_field(message: Any, field: str, value: object, name: str = "") -> None:
    """Sets a field unless the value is None or the field's own default without presence. A switch is no
    number, and a number no switch. Raises InvalidArgument naming the field.
    """
    if value is None:
        return
    name, kind = name or field, message.DESCRIPTOR.fields_by_name[field]
    if isinstance(value, bool | np.bool_) != (kind.type == kind.TYPE_BOOL):
        raise InvalidArgument(_why_not(name, value), field=name)
    if value == getattr(message, field) and not kind.has_presence:
        return
    try:
        setattr(message, field, held(value))
    except (ValueError, TypeError, OverflowError):
        raise InvalidArgument(_why_not(name, value), field=name) from None


def held(value: Any) -> Any:
    """The value, for a field. Raises OverflowError for a number that a float32 would make infinite."""
    if isinstance(value, float) and _GREATEST < abs(value) < math.inf:
        raise OverflowError
    return value


def _why_not(name: str, value: object, where: str = "") -> str:
    """Why a field cannot hold a value, which is shown where the field is no text."""
    if name in bounds.WHOLE or name in bounds.REAL:
        return bounds.refusal(name, value, where)
    limit = _SWITCH if name in _SWITCHES else "a text, without half a surrogate pair"
    return f"{where or name}: {type(value).__name__}, must be {limit}"


def extend(target: Any, values: Sequence[object], name: str) -> None:
    """Appends values to a repeated field. Raises InvalidArgument naming the first that does not fit."""
    if not len(values):
        return  # extending by nothing would set the field's message
    try:
        target.extend(values)
        return
    except (ValueError, TypeError, OverflowError):
        del target[:]
    for position, value in enumerate(values):
        try:
            target.append(value)
        except (ValueError, TypeError, OverflowError):
            raise InvalidArgument(_why_not(name, value, f"{name}[{position}]"), field=name) from None

"""Dataclasses of the core to plain values and back, by the names of their fields.

Owns the translation, which is derived from the types' own fields and hints, so that a new field is taken
along or refused by name, never left out; knows no file. Invariant: `Rebuilder(schema_of(t)).build(t,
plain(v))` equals v, and a log says which fields its values have.
"""

import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache
from operator import attrgetter, methodcaller
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

Schema = dict[str, tuple[str, ...]]
"""Field names in order, by class name."""

Build = Callable[[Any], Any]
_INT32 = np.dtype("<i4")


class UnknownField(ValueError):
    """A log's values have fields that this version does not know, or lack some that it needs."""


@cache
def field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@cache
def _reader(kind: type) -> Callable[[Any], Any]:
    names = field_names(kind)
    if len(names) == 1:
        only = attrgetter(names[0])
        return lambda value: [only(value)]
    return attrgetter(*names)


def plain(value: Any) -> Any:
    """What msgpack cannot write by itself: an array as little-endian int32 bytes, a dataclass as the list of
    its fields, a set sorted, an enum's value. Raises TypeError for anything else.
    """
    kind: type = type(value)
    return _plain_of(kind)(value)


@cache
def _plain_of(kind: type) -> Callable[[Any], Any]:
    if issubclass(kind, np.ndarray):
        return _array_bytes
    if issubclass(kind, frozenset):
        return sorted
    if issubclass(kind, Enum):
        return attrgetter("value")
    if issubclass(kind, np.integer | np.floating):
        return methodcaller("item")
    if dataclasses.is_dataclass(kind):
        return _reader(kind)
    raise TypeError(f"{kind.__name__} is no input of the core")


def _array_bytes(value: "np.ndarray[Any, Any]") -> bytes:
    if value.dtype == _INT32:
        return value.tobytes()
    if value.dtype.kind not in "iu":
        raise TypeError(f"an array of {value.dtype} is no input of the core")
    return value.astype(_INT32).tobytes()


def schema_of(*kinds: type) -> Schema:
    """The fields of these dataclasses and of all that they hold."""
    found: Schema = {}
    left = list(kinds)
    while left:
        kind = left.pop()
        if kind.__name__ not in found:
            found[kind.__name__] = field_names(kind)
            left += [held for hint in get_type_hints(kind).values() for held in _dataclasses_in(hint)]
    return found


def is_array(hint: Any) -> bool:
    """Whether a type hint is an array's. From NumPy 2.5 on NDArray is an alias of its own."""
    return get_origin(hint) in (np.ndarray, npt.NDArray)


def _dataclasses_in(hint: Any) -> list[type]:
    hint = getattr(hint, "__supertype__", hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint]
    return [kind for part in get_args(hint) for kind in _dataclasses_in(part)]


class Rebuilder:
    """Builds values as a log with this schema wrote them. Fields that the log lacks get their defaults."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._known: dict[Any, Build] = {}

    def build(self, hint: Any, value: Any) -> Any:
        """The value of this type. Raises UnknownField, TypeError for a type that logs cannot hold."""
        return self._builder(hint)(value)

    def _builder(self, hint: Any) -> Build:
        if hint not in self._known:
            self._known[hint] = self._new_builder(getattr(hint, "__supertype__", hint))
        return self._known[hint]

    def _new_builder(self, hint: Any) -> Build:
        if hint in (int, float, str, bytes, bool):
            return _as_is
        origin, parts = get_origin(hint), get_args(hint)
        if is_array(hint):
            return _array
        if origin in (Union, types.UnionType):
            return self._optional(hint, parts)
        if origin is frozenset:
            item = self._builder(parts[0])
            return lambda value: frozenset(map(item, value))
        if origin is tuple:
            return self._tuple(parts)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self._dataclass(hint)
        raise TypeError(f"a log cannot hold {hint}")

    def _optional(self, hint: Any, parts: tuple[Any, ...]) -> Build:
        others = [part for part in parts if part is not types.NoneType]
        if len(others) != 1 or len(parts) != 2:
            raise TypeError(f"a log cannot hold {hint}: which of the types a value has is not written")
        inner = self._builder(others[0])
        return lambda value: None if value is None else inner(value)

    def _tuple(self, parts: tuple[Any, ...]) -> Build:
        if len(parts) == 2 and parts[1] is Ellipsis:
            item = self._builder(parts[0])
            return lambda value: tuple(map(item, value))
        items = [self._builder(part) for part in parts]
        return lambda value: tuple(item(part) for item, part in zip(items, value, strict=True))

    def _dataclass(self, kind: type) -> Build:
        if kind.__name__ not in self._schema:
            raise UnknownField(f"the log says nothing of {kind.__name__}")
        written, hints = self._schema[kind.__name__], get_type_hints(kind)
        unknown = [name for name in written if name not in hints]
        if unknown:
            raise UnknownField(f"{kind.__name__}.{unknown[0]}: this version does not know the field")
        needed = [
            field.name
            for field in dataclasses.fields(kind)
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        ]
        lacking = [name for name in needed if name not in written]
        if lacking:
            raise UnknownField(f"{kind.__name__}.{lacking[0]}: the log lacks the field")
        items = [(name, self._builder(hints[name])) for name in written]
        return lambda value: kind(
            **{name: item(part) for (name, item), part in zip(items, value, strict=True)}
        )


def _as_is(value: Any) -> Any:
    return value


def _array(value: bytes) -> "np.ndarray[typing.Any, np.dtype[np.int32]]":
    return np.frombuffer(value, "<i4")

"""The log's values: every field of every input goes in and comes out, and a new one cannot be left out."""

import dataclasses
import types
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import msgpack
import numpy as np
import pytest

from scheduler_svc.core.plan import Capacity, NewRequest, SchedulerConfig, StepPlan, StepResult
from scheduler_svc.recorder.digest import DIGEST_FIELDS
from scheduler_svc.recorder.values import Rebuilder, UnknownField, is_array, plain, schema_of

INPUTS = (SchedulerConfig, Capacity, NewRequest, StepResult, StepPlan)


def sample(hint: Any) -> Any:
    """A value of this type that is no default."""
    hint = getattr(hint, "__supertype__", hint)
    simple = {int: 77, float: 0.375, str: "grün", bytes: b"\x00\xff", bool: True}
    if hint in simple:
        return simple[hint]
    origin, parts = get_origin(hint), get_args(hint)
    if is_array(hint):
        return np.array([3, 1, 2**31 - 1], np.int32)
    if type(None) in parts:
        return sample(next(part for part in parts if part is not types.NoneType))
    if origin is frozenset:
        return frozenset({sample(parts[0])})
    if origin is tuple:
        return (sample(parts[0]),) if parts[1:] == (Ellipsis,) else tuple(map(sample, parts))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[-1]
    assert dataclasses.is_dataclass(hint), hint
    values = {name: sample(kind) for name, kind in get_type_hints(hint).items()}
    values |= {
        field.name: not field.default for field in dataclasses.fields(hint) if isinstance(field.default, bool)
    }
    return hint(**values)  # type: ignore[operator]


def there_and_back(value: Any, kind: Any) -> Any:
    data = msgpack.packb(value, default=plain)
    return Rebuilder(schema_of(*INPUTS)).build(kind, msgpack.unpackb(data))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and np.array_equal(one, other))
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return type(one) is type(other) and all(equal(getattr(one, n), getattr(other, n)) for n in names)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("kind", INPUTS)
def test_every_field_comes_back_as_it_was(kind: type) -> None:
    value = sample(kind)
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            assert getattr(value, field.name) != field.default, "the test shows something of every field"
    assert equal(there_and_back(value, kind), value)


@pytest.mark.parametrize("kind", INPUTS)
def test_the_codec_has_the_fields_that_the_class_has(kind: type) -> None:
    written = schema_of(*INPUTS)[kind.__name__]
    assert written == tuple(field.name for field in dataclasses.fields(kind))


def test_a_digest_covers_every_field_of_a_plan() -> None:
    names = {field.name for field in dataclasses.fields(StepPlan)}
    assert set(DIGEST_FIELDS) | {"step_id"} == names


@dataclass(frozen=True)
class Old:
    size: int


@dataclass(frozen=True)
class New:
    size: int
    color: str = "red"
    weight: int = 0


def schema(kind: type, *names: str) -> Rebuilder:
    return Rebuilder({kind.__name__: names})


def test_a_field_that_the_log_lacks_gets_its_default() -> None:
    assert schema(New, "size", "weight").build(New, [4, 9]) == New(4, "red", 9)


def test_a_field_that_this_version_does_not_know_is_named() -> None:
    with pytest.raises(UnknownField, match=r"Old\.color"):
        schema(Old, "size", "color").build(Old, [4, "blue"])


def test_a_needed_field_that_the_log_lacks_is_named() -> None:
    with pytest.raises(UnknownField, match=r"New\.size"):
        schema(New, "color").build(New, ["blue"])


@dataclass(frozen=True)
class Odd:
    thing: int | str


def test_a_type_that_a_log_cannot_hold_is_refused_and_not_left_out() -> None:
    with pytest.raises(TypeError, match="cannot hold"):
        schema(Odd, "thing").build(Odd, [1])
    with pytest.raises(TypeError, match="no input"):
        msgpack.packb([object()], default=plain)
    with pytest.raises(TypeError, match="float64"):
        msgpack.packb([np.zeros(2)], default=plain)

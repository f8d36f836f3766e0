"""How a program reads its settings: flag, then OCTAVO_* variable, then default.

Owns the command line that is made of a settings class, and the words of its refusals; knows no setting.
Invariant: a bad command line or variable ends the program with status 2 and one line, in which each setting
has the name that it was given under.
"""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, TypeVar, get_args

from pydantic import PrivateAttr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, SettingsConfigDict

from octavo import transport
from octavo.command_line import Parser, limit_words, shown
from octavo.environment import PREFIX, unknown_names

_FIELD = re.compile(r"\{(\w+)\}")


class ProgramSettings(BaseSettings):
    """The settings of one program, and under which names they came. An empty variable is none."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid", allow_inf_nan=False
    )
    _given: dict[str, str] = PrivateAttr(default_factory=dict)

    def given(self, field: str) -> str:
        """`--depth 9`, or `OCTAVO_DEPTH 9` where it came from there: a setting's name and value as they were
        given, for a message.
        """
        return self._given.get(field, f"{flag_of(field)} {shown(getattr(self, field))}")


S = TypeVar("S", bound=ProgramSettings)


class Contradiction(ValueError):
    """Settings that cannot be together. In the text, {field} stands for a setting's name and value."""


class RefusedSetting(ValueError):
    """A setting that turns out not to work here, after the command line was read. field: its name, empty
    where it is about several.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(f"{flag_of(field)}: {message}" if field else message)
        self._message = message
        self._field = field

    def named(self, settings: ProgramSettings) -> str:
        """The message, with the name and the value that the setting was given under."""
        return f"{settings.given(self._field)}: {self._message}" if self._field else self._message


def reason_of(error: Exception) -> str:
    """Why a file that a setting names cannot be used."""
    return getattr(error, "strerror", None) or str(error)


def require_listen(address: str, allow_insecure_bind: bool) -> None:
    """Raises Contradiction when `listen` is no address, or one that needs --allow-insecure-bind."""
    try:
        transport.require_private(address, allow_insecure_bind)
    except ValueError as error:
        raise Contradiction(f"{{listen}}: {error}") from None


def flag_of(name: str) -> str:
    """The command line flag of a field."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a field."""
    return PREFIX + name.upper()


def load(
    kind: type[S],
    program: str,
    description: str,
    arguments: Sequence[str],
    environ: Mapping[str, str] = os.environ,
) -> S:
    """The settings of a command line. Exits with status 2 and one line for what is wrong; 0 after --help."""
    parser = _parser(kind, program, description)
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    for name in unknown_names(environ):
        parser.error(f"{name} {shown(environ[name])}: no program of this repository reads this variable")
    variables = frozenset(
        name for name in kind.model_fields if name not in given and environ.get(variable_of(name))
    )
    try:
        settings = kind(**given)
    except ValidationError as error:
        parser.error("; ".join(_problem(kind, problem, given, variables) for problem in error.errors()))
    for name in variables:
        settings._given[name] = f"{variable_of(name)} {shown(environ[variable_of(name)])}"
    for name, value in given.items():
        if isinstance(value, str):
            settings._given[name] = f"{flag_of(name)} {shown(value)}"
    return settings


def _name(field: str, variables: frozenset[str]) -> str:
    return variable_of(field) if field in variables else flag_of(field)


def _problem(
    kind: type[ProgramSettings], problem: Any, given: Mapping[str, Any], variables: frozenset[str]
) -> str:
    cause = problem.get("ctx", {}).get("error")
    if not problem["loc"]:
        return _contradiction(kind, str(cause or problem["msg"]), given, variables)
    field = str(problem["loc"][0])
    if problem["type"] == "missing":
        return f"{flag_of(field)}: is required, or {variable_of(field)}"
    limit = str(cause) if cause else f"must be {limit_of(kind.model_fields[field])}"
    return f"{_name(field, variables)} {shown(problem['input'])}: {limit}"


def _contradiction(
    kind: type[ProgramSettings], text: str, given: Mapping[str, Any], variables: frozenset[str]
) -> str:
    def named(found: re.Match[str]) -> str:
        field = found[1]
        value = os.environ.get(variable_of(field)) if field in variables else given.get(field)
        if value is None:
            value = kind.model_fields[field].default
        if isinstance(value, bool):
            return flag_of(field) if value else flag_of(f"no_{field}")
        return f"{_name(field, variables)} {shown(value)}"

    return _FIELD.sub(named, text)


def limit_of(field: FieldInfo) -> str:
    """What a value must be, in words."""
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not NoneType]
    if all(isinstance(choice, str) for choice in kinds):
        return f"one of {', '.join(map(str, kinds))}"
    if kinds == [bool]:
        return "true or false"
    if kinds in ([int], [float]):
        low, above, high = (_bound(field, name) for name in ("ge", "gt", "le"))
        kind = "whole number" if kinds == [int] else "number"
        return limit_words(kind, low if above is None else above, high, above is not None)
    return "a path or text"


def _bound(field: FieldInfo, name: str) -> float | None:
    found = (getattr(entry, name, None) for entry in field.metadata)
    return next((value for value in found if value is not None), None)


def _parser(kind: type[ProgramSettings], program: str, description: str) -> Parser:
    parser = Parser(
        prog=f"python -m {program}",
        description=description,
        epilog=f"Each flag is a variable too: {PREFIX} and its name in capitals, as {PREFIX}LISTEN.",
    )
    for name, field in kind.model_fields.items():
        parser.add_argument(flag_of(name), dest=name, help=_help(field), **_kind(field))
    return parser


def _kind(field: FieldInfo) -> dict[str, Any]:
    if field.annotation is bool:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not NoneType]
    if all(isinstance(choice, str) for choice in kinds):
        return {"metavar": "|".join(map(str, kinds))}
    return {"metavar": kinds[0].__name__.upper()}


def _help(field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    if field.default is PydanticUndefined:
        return f"{text} (required)"
    return f"{text} (default: {field.default})" if field.default not in ("", None) else text

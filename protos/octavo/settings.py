"""How a program reads its settings: flag, then OCTAVO_* variable, then default.

Owns the command line that is made of a settings class, and the words of its refusals; knows no setting.
Invariant: a bad command line or variable ends the program with status 2 and one line for each problem.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from octavo.environment import PREFIX, unknown_names

S = TypeVar("S", bound=BaseSettings)


def flag_of(name: str) -> str:
    """The command line flag of a field."""
    return "--" + name.replace("_", "-")


def load(
    kind: type[S],
    program: str,
    description: str,
    arguments: Sequence[str],
    environ: Mapping[str, str] = os.environ,
) -> S:
    """The settings of a command line. Exits with status 2 and one line for each problem; 0 after --help."""
    parser = _parser(kind, program, description)
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    for name in unknown_names(environ):
        parser.error(f"{name}: no program of this repository reads it")
    try:
        return kind(**given)
    except ValidationError as error:
        parser.error("\n".join(_problem(problem) for problem in error.errors()))


def _problem(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if not where:
        return str(message)
    value = "" if problem["type"] == "missing" else f" {problem['input']}"
    return f"{flag_of(where)}{value}: {message}"


def _parser(kind: type[BaseSettings], program: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        epilog=f"Each flag is a variable too: {PREFIX} and its name in capitals, as {PREFIX}LISTEN.",
        allow_abbrev=False,
    )
    for name, field in kind.model_fields.items():
        parser.add_argument(flag_of(name), dest=name, help=_help(field), **_kind(field))
    return parser


def _kind(field: FieldInfo) -> dict[str, Any]:
    if field.annotation is bool:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    choices = get_args(field.annotation)
    if choices and all(isinstance(choice, str) for choice in choices):
        return {"metavar": "|".join(choices)}
    return {"metavar": getattr(field.annotation, "__name__", "VALUE").upper()}


def _help(field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    if field.default is PydanticUndefined:
        return f"{text} (required)"
    return f"{text} (default: {field.default})" if field.default not in ("", None) else text

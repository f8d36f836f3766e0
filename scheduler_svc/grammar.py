"""Constrained output: from a request's response_format to the grammar that the worker compiles.

Owns the check of a grammar and its translation; knows neither tokenizer nor worker. Invariant: a grammar that
leaves this module is within the limits of octavo.grammars, so that the worker can compile it.
"""

import json
from functools import lru_cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from octavo.errors import InvalidArgument
from octavo.grammars import LIMITS

_SHOWN = 200
"""Characters of a complaint that a client is told."""
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""No white space but one after commas and colons: a model cannot fill its answer with it. A schema's own
"x-guidance" goes before."""


@lru_cache(maxsize=64)
def grammar_of(kind: str, text: str) -> str:
    """The grammar of a json_schema, a regex or an ebnf (GBNF, or Lark as llguidance reads it).

    Takes up to tenths of a second: belongs in a thread. Raises InvalidArgument (INVALID_GRAMMAR), naming the
    field and what is wrong.
    """
    field = f"response_format.{kind}"
    try:
        grammar = _translated(kind, text)
    except (ValueError, RecursionError) as error:
        raise _invalid(field, str(error)) from None
    failed, complaints = LLMatcher.validate_grammar_with_warnings(
        grammar, None, limits=LLParserLimits(**LIMITS)
    )
    if failed:
        raise _invalid(field, complaints[0])
    stuck = _cannot_begin(grammar)
    if stuck:
        raise _invalid(field, stuck)
    return grammar


def _cannot_begin(grammar: str) -> str:
    """Why neither a first byte nor the end is allowed, so that every token of any model would be barred;
    empty when one is.
    """
    matcher = LLMatcher(_bytes(), grammar, log_level=0, limits=LLParserLimits(**LIMITS))
    matcher.compute_bitmask()
    if not matcher.is_error():
        return ""
    why = matcher.get_error()
    return "no text fits the grammar" if why.startswith("NoExtension") else why


@lru_cache(maxsize=1)
def _bytes() -> LLTokenizer:
    """A tokenizer whose tokens are the single bytes."""
    return LLTokenizer("byte")


def _translated(kind: str, text: str) -> str:
    if kind == "json_schema":
        schema = json.loads(text)
        if not isinstance(schema, dict):
            raise ValueError(f"a schema is an object, not {type(schema).__name__}")
        return LLMatcher.grammar_from_json_schema(text, defaults=_JSON_STYLE)  # type: ignore[arg-type]
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    return LLMatcher.grammar_from_lark(_lark_of(text) if "::=" in text else text)


def _lark_of(gbnf: str) -> str:
    """Raises ValueError for whatever the converter raises, which is mostly a bare Exception."""
    try:
        return any_to_lark(gbnf)
    except Exception as error:  # noqa: BLE001
        raise ValueError(str(error)) from None


def _invalid(field: str, why: str) -> InvalidArgument:
    line = " ".join(why.split())[:_SHOWN]
    return InvalidArgument(f"{field}: {line or 'is empty'}", reason="INVALID_GRAMMAR", field=field)

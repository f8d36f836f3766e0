"""Constrained output: from a request's response_format to the grammar that the worker compiles.

Owns the check of a grammar and its translation; knows no worker, and of a tokenizer its special tokens.
Invariant: a grammar that leaves this module is within the limits of octavo.grammars, so that the worker can
compile it, and its first steps are too.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from octavo.errors import InvalidArgument
from octavo.grammars import limits
from scheduler_svc.gbnf import lark_of
from scheduler_svc.grammar_bounds import check_lark, check_regex, check_schema
from scheduler_svc.grammar_walk import complaint_of

_SHOWN = 200
"""Characters of a complaint that a client is told."""
_TOO_DEEP = "is nested too deep"
_OF_REGEX = re.compile(r"\nerror: ([^\n]+)")
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""No white space but one after commas and colons: a model cannot fill its answer with it. A schema's own
"x-guidance" goes before."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a grammar can name of a tokenizer: ids below size, and special tokens by (id, text)."""

    size: int = 0
    special: tuple[tuple[int, str], ...] = ()


@lru_cache(maxsize=64)
def grammar_of(kind: str, text: str, vocabulary: Vocabulary = Vocabulary()) -> str:
    """The grammar of a json_schema, a regex or an ebnf (GBNF, or Lark as llguidance reads it).

    Takes up to tenths of a second: belongs in a thread. Raises InvalidArgument (INVALID_GRAMMAR), naming the
    field and what is wrong.
    """
    field = f"response_format.{kind}"
    try:
        grammar = _translated(kind, text)
    except RecursionError:
        raise _invalid(field, _TOO_DEEP) from None
    except ValueError as error:
        raise _invalid(field, str(error)) from None
    bounds, (tokenizer, byte_ids) = LLParserLimits(**limits(grammar)), _bytes(vocabulary)
    failed, complaints = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer, limits=bounds)
    if failed:
        raise _invalid(field, complaints[0])
    why = complaint_of(LLMatcher(tokenizer, grammar, log_level=0, limits=bounds), byte_ids, len(text))
    if why:
        raise _invalid(field, why)
    return grammar


class _Bytes:
    """A tokenizer whose tokens are the single bytes, and the special tokens at their ids."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        special = dict(vocabulary.special)
        size = max(vocabulary.size, 258 + max(special, default=-1))
        self.tokens = [b""] * size
        self.special_token_ids = sorted(special)
        free = [token_id for token_id in range(size) if token_id not in special]
        self.ids = free[:256]
        self.eos_token_id = free[256]
        for token_id, text in special.items():
            self.tokens[token_id] = text.encode()
        for byte, token_id in enumerate(self.ids):
            self.tokens[token_id] = bytes([byte])

    def __call__(self, text: bytes) -> list[int]:
        return [self.ids[byte] for byte in text]


@lru_cache(maxsize=2)
def _bytes(vocabulary: Vocabulary) -> tuple[LLTokenizer, list[int]]:
    made = _Bytes(vocabulary)
    return LLTokenizer(TokenizerWrapper(made)), made.ids


def _translated(kind: str, text: str) -> str:
    if kind == "json_schema":
        check_schema(text)
        return LLMatcher.grammar_from_json_schema(text, defaults=_JSON_STYLE)  # type: ignore[arg-type]
    if kind == "regex":
        check_regex(text)
        return LLMatcher.grammar_from_regex(text)
    lark = lark_of(text) if "::=" in text else text
    check_lark(lark)
    return LLMatcher.grammar_from_lark(lark)


def _invalid(field: str, why: str) -> InvalidArgument:
    """What is wrong, without the regular expression that is mostly said before it."""
    reason = _OF_REGEX.search(why)
    if reason is not None:
        where = "" if field.endswith(".regex") else f"{why.partition(':')[0]}: "
        why = where + reason[1]
    if "recursion limit exceeded" in why:
        why = _TOO_DEEP
    line = " ".join(why.replace("<non-verbose/>", "").split())[:_SHOWN]
    return InvalidArgument(f"{field}: {line or 'is empty'}", reason="INVALID_GRAMMAR", field=field)

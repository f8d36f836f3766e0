"""The check of grammars: what passes, what is refused, and that nothing else ever comes of it."""

import json
import random

import pytest

from octavo.errors import InvalidArgument
from scheduler_svc.grammar import grammar_of
from tests.fixtures.schemas import draw_schema

GOOD = {
    "json_schema": [json.dumps(draw_schema(seed)) for seed in range(10)] + ["{}", '{"type": "object"}'],
    "regex": ["[a-z]+", "(ja|nein)", "\\d{3}", ""],
    "ebnf": ['root ::= "a" b\nb ::= [0-9]+ | "x"', 'start: "a" B\nB: /[0-9]+/'],
}

AMBIGUOUS = "start: a0\n" + "\n".join(
    f'a{n}: "x"? | a{(n + 1) % 1500} a{(n + 2) % 1500}' for n in range(1500)
)
"""Any of 1,500 rules may begin with any other: a step over it took seconds."""


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in GOOD.items() for text in texts])
def test_a_good_grammar_passes(kind: str, text: str) -> None:
    assert grammar_of(kind, text)


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("json_schema", '{"type": "nope"}', "Invalid type: nope"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', 'Unimplemented keys: ["uniqueItems"]'),
        ("json_schema", "{", "Expecting property name"),
        ("json_schema", "[]", "a schema is an object, not list"),
        ("regex", "(", "unclosed group"),
        ("ebnf", 'root ::= "a" other', "other"),
        ("ebnf", "start: missing", 'unknown name: "missing"'),
        ("ebnf", "start: start", "no text fits the grammar"),
        ("ebnf", "start: /[^\\x00-\\U0010FFFF]/", "no text fits the grammar"),
    ],
)
def test_a_bad_one_is_refused_with_its_field_and_the_reason_in_one_line(
    kind: str, text: str, why: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        grammar_of(kind, text)
    error = refused.value
    assert (error.field, error.reason) == (f"response_format.{kind}", "INVALID_GRAMMAR")
    assert why in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", json.dumps({"allOf": [{"properties": {f"p{n}": {}}} for n in range(2000)]})),
        ("regex", "(" * 20_000 + "a" + ")" * 20_000),
        ("ebnf", "start: " + "(" * 5000 + '"a"' + ")" * 5000),
        ("ebnf", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
        ("json_schema", "[" * 60_000),
        ("ebnf", AMBIGUOUS),
    ],
)
def test_a_grammar_too_large_to_compile_is_refused(kind: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"response_format.{kind}"):
        grammar_of(kind, text)


def test_damaged_grammars_raise_nothing_but_refusals() -> None:
    """2,000 good ones with characters dropped, doubled and swapped; a seed each, so that any can be had
    again.
    """
    texts = [(kind, text) for kind, some in GOOD.items() for text in some if len(text) > 1]
    refused = 0
    for seed in range(2000):
        rng = random.Random(seed)
        kind, text = rng.choice(texts)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(text))
            text = (
                text[:at]
                + rng.choice(["", text[at] * 2, rng.choice('"\\()[]{}|:=^$\n\x00é')])
                + text[at + 1 :]
            )
            text = text or "x"
        try:
            assert grammar_of(kind, text)
        except InvalidArgument:
            refused += 1
    assert 500 < refused < 2000

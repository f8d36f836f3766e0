"""The check of grammars: what passes, what is refused, and that nothing else ever comes of it."""

import json
import random

import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from octavo.errors import InvalidArgument
from octavo.grammars import MOST_ITEMS, limits
from scheduler_svc.grammar import Vocabulary, grammar_of
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


def many_properties(count: int) -> str:
    return json.dumps({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(count)}})


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
        ("regex", "(", "response_format.regex: unclosed group"),
        ("regex", "(" * 300 + "a" + ")" * 300, "nested parentheses"),
        ("regex", "(?<=x)a", "response_format.regex: look-around"),
        ("ebnf", "start: /[z-a]/", "response_format.ebnf: at 1(8): invalid character class range"),
        ("ebnf", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "too deeply nested"),
        (
            "json_schema",
            '{"not":' * 900 + "{}" + "}" * 900,
            "response_format.json_schema: is nested too deep",
        ),
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
        ("json_schema", many_properties(2500)),
        ("json_schema", json.dumps({"type": "array", "items": json.loads(many_properties(2500))})),
    ],
)
def test_a_grammar_too_large_to_compile_is_refused(kind: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"response_format.{kind}"):
        grammar_of(kind, text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"$ref": "#"}', "no text fits the grammar"),
        (
            '{"type": "object", "properties": {"child": {"$ref": "#"}}, "required": ["child"]}',
            " characters in a row, and no end of them was found",
        ),
        (many_properties(2500), "is too large for a step: "),
        ("[" * 60_000, "is nested too deep"),
    ],
)
def test_what_would_fail_in_a_step_fails_at_the_check(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        grammar_of("json_schema", text)
    assert why in refused.value.message
    assert "<non-verbose/>" not in refused.value.message
    assert "recursion" not in refused.value.message


ARRAY = {"type": "array", "items": {"type": "integer"}}


def multiples(*values: float, kind: str = "allOf") -> str:
    return json.dumps({kind: [{"type": "number", "multipleOf": value} for value in values]})


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (
            "json_schema",
            json.dumps(ARRAY | {"minItems": 10**9}),
            "minItems: 1000000000 is above 65536, the limit",
        ),
        (
            "json_schema",
            '{"type": "string", "minLength": 65537}',
            "minLength: 65537 is above 65536, the limit",
        ),
        (
            "json_schema",
            '{"properties": {"a": {"minProperties": 1e9}}}',
            "minProperties: 1000000000 is above 65536",
        ),
        (
            "json_schema",
            json.dumps(ARRAY | {"maxItems": 1 << 31}),
            "maxItems: 2147483648 is above 2147483647",
        ),
        (
            "json_schema",
            '{"type": "string", "maxLength": ' + "9" * 5000 + "}",
            "is above 2147483647, the limit",
        ),
        ("json_schema", '{"pattern": "^a{65537}$"}', "{65537}: 65537 repetitions are above 65536, the limit"),
        ("json_schema", '{"patternProperties": {"a{65537}": {}}}', "{65537}: 65537 repetitions are above"),
        ("regex", "a{1000000000}", "{1000000000}: 1000000000 repetitions are above 65536, the limit"),
        ("regex", "[a-z]{0,99999999999}", "99999999999 repetitions are above 2147483647, the limit"),
        ("regex", "(a{1000}){1000}", "characters in a row, and no end of them was found"),
        ("ebnf", 'root ::= "a"{1000000000}', "1000000000 repetitions are above 65536, the limit"),
        ("ebnf", "start: A~70000..80000\nA: /a/", "~70000..80000: 70000 repetitions are above 65536"),
        ("ebnf", "start: /x{70000}/", "{70000}: 70000 repetitions are above 65536, the limit"),
        ("ebnf", 'start: %json {"type": "string", "minLength": 70000}', "minLength: 70000 is above 65536"),
        ("json_schema", multiples(1 << 31), "multipleOf: 2147483648 has to be below 1000000001"),
        (
            "json_schema",
            multiples(999_983),
            "multipleOf: 999983: the least common multiple of all, 999983, is ab",
        ),
        (
            "json_schema",
            multiples(4001, 4002, kind="anyOf"),
            "least common multiple of all, 16012002, is above",
        ),
        ("json_schema", multiples(1 << 29, 0.25), "multipleOf: 536870912: the least common multiple of all"),
        ("json_schema", multiples(99_990_000), "multipleOf: 99990000: the least common multiple of all"),
        ("json_schema", multiples(-2), "multipleOf: -2 must be above 0"),
        (
            "json_schema",
            multiples(1e-10),
            "multipleOf: 0.0000000001 has to be below 1000000001, with 9 decimals at most",
        ),
        (
            "ebnf",
            'start: "a" %json {"multipleOf": 73} "b" %json {"multipleOf": 149}',
            "of all, 10877, is above",
        ),
        ("json_schema", '{"default": {"multipleOf": 999983}, "$ref": "#/default"}', "multipleOf: 999983: "),
    ],
)
def test_a_number_of_a_grammar_beyond_its_limit_is_named(kind: str, text: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        grammar_of(kind, text)
    assert refused.value.message.startswith(f"response_format.{kind}: ")
    assert why in refused.value.message


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", json.dumps(ARRAY | {"minItems": 1 << 16, "maxItems": (1 << 31) - 1})),
        (
            "json_schema",
            '{"type": "object", "properties": {"minItems": {"const": 1}, "multipleOf": {"const": 3}}}',
        ),
        ("json_schema", multiples(0.01, 1000, 1_000_000)),
        ("json_schema", multiples(0.25, 15, 60, 3600)),
        ("json_schema", multiples(9999)),
        ("json_schema", multiples(1e9, kind="anyOf")),
        ("regex", r"\x{100000}[{99999999}]\{99999999}\p{L}{5}a{3,2147483647}"),
        ("ebnf", 'start: "a{99999999}" /b{3}/ // {99999999}\n# {99999999}\n'),
    ],
)
def test_a_number_of_a_grammar_within_its_limit_is_taken(kind: str, text: str) -> None:
    assert grammar_of(kind, text)


def test_large_but_possible_schemas_pass() -> None:
    """900 properties, 60,000 characters that are all demanded, and one that may hold itself."""
    tree = '{"type": "object", "properties": {"child": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}'
    for text in (many_properties(900), json.dumps({"const": "a" * 60_000}), tree):
        grammar = grammar_of("json_schema", text)
        bounds = LLParserLimits(**limits(grammar))
        matcher = LLMatcher(LLTokenizer("byte"), grammar, limits=bounds, log_level=0)
        for byte in b'{"' if "object" in text else b'"a':
            matcher.compute_bitmask()
            assert matcher.consume_token(byte), matcher.get_error()


@pytest.mark.parametrize(
    ("gbnf", "wanted"),
    [
        (r'root ::= "\u0041b"', "Ab"),
        (r'root ::= "\u00e9\u4e2d"', "é中"),
        (r'root ::= "\U0001F600"', "😀"),
        (r'root ::= "\\u0041"', r"\u0041"),
        (r'root ::= "\u0022\u005c\u000a"', '"\\\n'),
        (r"root ::= [\u005d-\u005d]", "]"),
        (r'root ::= "(((" # (((', "((("),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, "a"),
    ],
)
def test_an_escape_of_gbnf_is_its_code_point(gbnf: str, wanted: str) -> None:
    matcher = LLMatcher(LLTokenizer("byte"), grammar_of("ebnf", gbnf), log_level=0)
    assert matcher.consume_tokens(list(wanted.encode())), matcher.get_error()
    assert matcher.is_accepting()


@pytest.mark.parametrize(
    ("gbnf", "why"),
    [
        (r'root ::= "\ud800"', r"\ud800 is no character"),
        (r'root ::= "\U00110000"', r"\U00110000 is no character"),
        ("root ::= " + "(" * 101 + '"a"' + ")" * 101, "parentheses are nested more than 100 deep, the limit"),
        ("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "parentheses are nested more than 100 deep"),
    ],
)
def test_what_gbnf_cannot_say_is_plain(gbnf: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        grammar_of("ebnf", gbnf)
    assert refused.value.message.startswith(f"response_format.ebnf: {why}")


VOCABULARY = Vocabulary(400, ((0, "<|end|>"), (7, "<|turn|>")))


@pytest.mark.parametrize("lark", ['start: <|turn|> "a"', 'start: "a" <[7]>', "start: <[300-399]>"])
def test_a_grammar_names_the_model_s_own_special_tokens(lark: str) -> None:
    assert grammar_of("ebnf", lark, VOCABULARY)


@pytest.mark.parametrize("lark", ["start: <|other|>", "start: <[400]>", "start: <|assistant|>"])
def test_one_that_the_model_has_not_is_refused(lark: str) -> None:
    with pytest.raises(InvalidArgument):
        grammar_of("ebnf", lark, VOCABULARY)


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


def steps_until_it_is_too_large(grammar: str, text: bytes) -> int:
    """Bytes of the text that the grammar takes before it runs out of items, or all."""
    matcher = LLMatcher(LLTokenizer("byte"), grammar, limits=LLParserLimits(**limits(grammar)), log_level=0)
    for number, byte in enumerate(text):
        matcher.compute_bitmask()
        if matcher.is_error() or not matcher.consume_token(byte):
            assert "Too many items" in matcher.get_error(), matcher.get_error()
            return number
    return len(text)


def test_a_short_grammar_that_is_ambiguous_ends_before_its_steps_are_long() -> None:
    """Its items grow with the text, and what each costs; a plain one of the same length needs few."""
    grammar = grammar_of("ebnf", 'root ::= root root root | root root | "a"')
    assert limits(grammar)["step_max_items"] < MOST_ITEMS / 5
    assert 5 < steps_until_it_is_too_large(grammar, b"a" * 400) < 400
    plain = grammar_of("ebnf", 'root ::= "a" root | "a"')
    assert steps_until_it_is_too_large(plain, b"a" * 400) == 400

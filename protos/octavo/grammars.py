"""What a grammar of constrained output may cost, for the side that checks it and the side that runs it.

Owns the limits, as arguments of llguidance's LLParserLimits; knows no library. Invariant: both services use
the same ones, so that a grammar which passed the check is compiled too.
"""

from typing import Any

MOST_ITEMS = 10_000
_LEAST_ITEMS = 1500
_CHARACTERS_AN_ITEM = 3


def limits(grammar: str) -> dict[str, Any]:
    """Of this grammar. Fuel is work: some 20 ms to build, some 15 ms a step. States are memory: 1 to 2 KiB.

    Items of a parser in one step: what a grammar says at length may need many (900 optional properties take
    5,500, 8 ms). One of a line that needs many is ambiguous, and needs more with every token, each of which
    costs more too: `root ::= root root | "a"` takes 0.25 s for 5,000 of them.
    """
    return {
        "max_items_in_row": 8000,
        "initial_lexer_fuel": 1_000_000,
        "step_lexer_fuel": 200_000,
        "step_max_items": min(MOST_ITEMS, _LEAST_ITEMS + len(grammar) // _CHARACTERS_AN_ITEM),
        "max_lexer_states": 50_000,
        "max_grammar_size": 500_000,
        "verbose_errors": False,
    }

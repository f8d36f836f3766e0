"""What a grammar of constrained output may cost, for the side that checks it and the side that runs it.

Owns the limits, as arguments of llguidance's LLParserLimits; knows no library. Invariant: both services use
the same ones, so that a grammar which passed the check is compiled too.
"""

from typing import Any

LIMITS: dict[str, Any] = {
    "max_items_in_row": 8000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 10_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}
"""Fuel is work: some 20 ms to build, some 15 ms a step, and 10,000 items of a
parser some 0.2 s. States are memory: 1 to 2 KiB each."""

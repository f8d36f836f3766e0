"""GBNF, as llama.cpp has it, to the Lark of llguidance.

Owns what llguidance's converter gets wrong: escapes of code points, and nesting; knows no model. Invariant:
an escape means its code point, and what cannot be read is a ValueError with a plain reason.
"""

import re

from llguidance.gbnf_to_lark import any_to_lark

MAX_NESTING = 100
"""Parentheses within one another; the converter calls itself for each."""
_ESCAPE = re.compile(r"\\\\|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})")
_STEP = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|[()]', re.DOTALL)
_SURROGATES = range(0xD800, 0xE000)


def lark_of(gbnf: str) -> str:
    """The same grammar in Lark. Raises ValueError."""
    _check_nesting(gbnf)
    try:
        return any_to_lark(_ESCAPE.sub(_character, gbnf))
    except RecursionError:
        raise ValueError("is nested too deep") from None
    except ValueError:
        raise
    except Exception as error:  # noqa: BLE001 - the converter raises mostly bare ones
        raise ValueError(str(error)) from None


def _check_nesting(gbnf: str) -> None:
    depth = 0
    for step in _STEP.finditer(gbnf):
        depth += {"(": 1, ")": -1}.get(step.group(), 0)
        if depth > MAX_NESTING:
            raise ValueError(f"parentheses are nested more than {MAX_NESTING} deep, the limit")


def _character(found: re.Match[str]) -> str:
    """The character of an escape, or a shorter escape for ASCII, whose characters have other meanings: the
    converter takes the zeros off the longer ones.
    """
    digits = found[1] or found[2]
    if digits is None:
        return found.group()
    code = int(digits, 16)
    if code in _SURROGATES or code > 0x10FFFF:
        raise ValueError(f"{found.group()} is no character")
    return f"\\x{code:02x}" if code < 0x80 else chr(code)

"""The first steps that a grammar allows, taken to see whether they can be.

Owns the walk; knows neither requests nor the model's own tokens. Invariant: its cost is bounded by WALKED,
and what it finds is what a step of the worker would have found.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher

WALKED = 24
"""Ways that are tried: where a grammar opens an object, what comes after is one of the first."""
_FORKS = 3
_OPENING = b'{["('
_WORK = ("Too many items", "Current row has", "fuel", "lexer states")
_TOO_MUCH = "is too large for a step"
_NO_TEXT = "no text fits the grammar"


def complaint_of(matcher: LLMatcher, byte_ids: Sequence[int], length: int) -> str:
    """Why a step cannot be taken; empty when all that were tried could. length: characters of the grammar.

    matcher: of single bytes, with these token ids, at its beginning. Opening marks are tried first, for
    behind them lies what is large: the properties of an object, the levels of one that holds itself.
    """
    waiting, left = deque([matcher]), WALKED
    order = [byte_ids[byte] for byte in (*_OPENING, *range(32, 256), *range(32))]
    while waiting and left > 0:
        here = waiting.popleft()
        mask = np.unpackbits(np.frombuffer(here.compute_bitmask(), np.uint8), bitorder="little")
        if here.is_error():
            return _words(here)
        forced = here.compute_ff_tokens()
        allowed = [[token_id] for token_id in order if mask[token_id]]
        for way in [forced] if forced else allowed[:_FORKS]:
            left -= 1
            there = here.deep_copy()
            there.consume_tokens(way)
            if there.is_error():
                return _endless(len(forced)) if len(forced) > length else _words(there)
            if not there.is_stopped():
                waiting.append(there)
    return ""


def _endless(characters: int) -> str:
    return f"{_TOO_MUCH}: it demands {characters} characters in a row, and no end of them was found"


def _words(matcher: LLMatcher) -> str:
    why = matcher.get_error()
    if why.startswith("NoExtension"):
        return _NO_TEXT
    return f"{_TOO_MUCH}: {why}" if any(sign in why for sign in _WORK) else why

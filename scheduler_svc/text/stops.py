"""Finding stop strings in text that arrives in pieces.

Owns the automaton of a set of stop strings and the text that one sequence holds back; does not know tokens.
Invariant: what was released never holds a character of a stop string that is later reported (unless it is
asked for), and at most longest stop - 1 characters are held.

The earliest match is the one that is complete first; of several that end at the same character, the one that
started first (the longest). So the answer never depends on how the text is cut, and no further token is ever
needed to decide it. Of two stops where one is a prefix of the other, the shorter one always matches.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(slots=True)
class StopSet:
    """The Aho-Corasick automaton of some strings (Aho and Corasick 1975); state 0 is the root.

    depth: characters of the longest stop prefix that ends here. ends: the longest stop that ends here, or "".
    """

    goto: list[dict[str, int]] = field(default_factory=lambda: [{}])
    fail: list[int] = field(default_factory=lambda: [0])
    depth: list[int] = field(default_factory=lambda: [0])
    ends: list[str] = field(default_factory=lambda: [""])
    first_chars: frozenset[str] = frozenset()


@lru_cache(maxsize=256)
def stop_set(stops: tuple[str, ...]) -> StopSet:
    """The automaton of non-empty strings, shared by requests with the same tuple; linear in their length."""
    made = StopSet(first_chars=frozenset(stop[0] for stop in stops))
    for stop in stops:
        _insert(made, stop)
    queue = deque(made.goto[0].values())
    while queue:
        state = queue.popleft()
        for char, child in made.goto[state].items():
            made.fail[child] = _next(made, made.fail[state], char)
            queue.append(child)
        made.ends[state] = made.ends[state] or made.ends[made.fail[state]]
    return made


def _insert(made: StopSet, stop: str) -> None:
    state = 0
    for char in stop:
        child = made.goto[state].get(char)
        if child is None:
            child = made.goto[state][char] = len(made.goto)
            made.goto.append({})
            made.fail.append(0)
            made.depth.append(made.depth[state] + 1)
            made.ends.append("")
        state = child
    made.ends[state] = stop


def _next(made: StopSet, state: int, char: str) -> int:
    goto, fail = made.goto, made.fail
    while state and char not in goto[state]:
        state = fail[state]
    return goto[state].get(char, 0)


class StopScanner:
    """The text of one sequence on its way out. After a match it releases nothing more."""

    __slots__ = ("_held", "_include", "_set", "_state", "matched")

    def __init__(self, stops: tuple[str, ...], include_stop: bool) -> None:
        self._set = stop_set(stops)
        self._include = include_stop
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that may go out now; sets `matched` when a stop string is complete. Linear cost."""
        if self.matched is not None:
            return ""
        state = self._state
        if not state and self._set.first_chars.isdisjoint(text):
            return text
        ends = self._set.ends
        for place, char in enumerate(text):
            state = _next(self._set, state, char)
            if ends[state]:
                return self._cut(text[: place + 1], ends[state])
        self._state = state
        if self._include:
            return text
        whole = self._held + text
        release = len(whole) - self._set.depth[state]
        self._held = whole[release:]
        return whole[:release]

    def finish(self) -> str:
        """The text held back, which can no longer match."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _cut(self, text: str, stop: str) -> str:
        self.matched = stop
        if self._include:
            return text
        whole, self._held = self._held + text, ""
        return whole[: len(whole) - len(stop)]

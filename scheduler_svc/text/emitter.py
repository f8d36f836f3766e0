"""The text of one sequence: token ids in, text to send out.

Owns the detokenizer and the stop scanner of a sequence; does not know requests or streams. Invariant: the
joined text of all pushes and `finish` does not depend on how the ids were cut into pushes, and equals the
decode of the ids cut at the earliest stop string.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_svc.text.detokenizer import Detokenizer
from scheduler_svc.text.stops import StopScanner


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string, and the number of tokens of the sequence up to the one that completed it."""

    stop: str
    output_len: int


class Emitted(NamedTuple):
    """Text to send now. stopped: set once, by the push that completed a stop string."""

    text: str
    stopped: StopMatch | None = None


_NOTHING = Emitted("")


class TextEmitter:
    """Not thread-safe; one a sequence. `stopped` keeps the match.

    The search for stop strings begins once min_tokens are out: what those spell is neither searched nor held.
    """

    __slots__ = ("_consumed", "_detokenizer", "_min_tokens", "_scanner", "stopped")

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = detokenizer
        self._min_tokens = min_tokens
        self._scanner = StopScanner(stop, include_stop) if stop else None
        self._consumed = 0
        self.stopped: StopMatch | None = None

    def push(self, token_ids: Sequence[int]) -> Emitted:
        """Consumes any number of ids; returns the text that will not change. Takes nothing after a match."""
        if self.stopped is not None:
            return _NOTHING
        scanner = self._scanner
        if scanner is None:
            self._consumed += len(token_ids)
            return Emitted(self._detokenizer.push(token_ids))
        out: list[str] = []
        for token_id in token_ids:
            self._consumed += 1
            if text := self._detokenizer.push((token_id,)):
                out.append(self._scan(scanner, text) if self._consumed > self._min_tokens else text)
            if self.stopped is not None:
                break
        return Emitted("".join(out), self.stopped)

    def finish(self) -> str:
        """The end of the text: held text, and U+FFFD for an unfinished character. Empty after a match.

        The leftover is searched too: a stop string that ends with U+FFFD sets `stopped` here.
        """
        if self.stopped is not None:
            return ""
        left = self._detokenizer.finish()
        if self._scanner is None or self._consumed <= self._min_tokens:
            return left
        text = self._scan(self._scanner, left) if left else ""
        return text + (self._scanner.finish() if self.stopped is None else "")

    def _scan(self, scanner: StopScanner, text: str) -> str:
        out = scanner.feed(text)
        if scanner.matched is not None:
            self.stopped = StopMatch(scanner.matched, self._consumed)
        return out

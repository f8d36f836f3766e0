"""Grammars of constrained output: which tokens a row may sample next.

Owns the matchers of the rows that have one, their compilation in a thread, and the catching up with tokens
that the device has drawn; knows neither logits nor plans. Invariant: a mask belongs to exactly the tokens
that its row has sampled; a row whose matcher cannot go on allows nothing, so that it fails alone; and no step
waits for the compilation of a grammar that was held before its row was set up.
"""

import logging
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import llguidance.numpy as masks_of
import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from gpu_worker.device import Download, Marker
from gpu_worker.errors import NoGrammarsError
from gpu_worker.wire import Int32Array, RowSetup
from octavo.errors import ResourceExhausted
from octavo.grammars import limits

_log = logging.getLogger(__name__)
_KEPT = 64
"""Compiled grammars that nobody holds and that are kept for rows to come."""
HELD_CHARACTERS = 8 << 20
"""Of the grammars that are held; compiled, a character takes 70 to 150 bytes."""
_MOST_THREADS = 8


class GrammarCompiler:
    """Compiles for one tokenizer, whose table is built in the same thread. eos_ids: what may end a text."""

    def __init__(self, tokenizer: Path, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._tokenizer = self._thread.submit(_read_tokenizer, tokenizer, vocab_size, list(eos_ids))
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._holders: Counter[str] = Counter()
        self._held_characters = 0

    def wait(self) -> None:
        """Until the table is there: its building stops every other thread of Python for up to seconds, and so
        belongs before the first step.
        """
        error = self._tokenizer.exception()
        if isinstance(error, NoGrammarsError):
            _log.warning("no grammar can be followed: %s", error)
        elif error is not None:
            _log.error("no grammar can be followed", exc_info=error)

    @property
    def width(self) -> int:
        """int32 words of a mask. Waits for the table."""
        return -(-self._tokenizer.result().vocab_size // 32)

    def hold(self, grammar: str) -> "Future[LLMatcher]":
        """Compiles a grammar and keeps it until `release`, once for each call. Raises ResourceExhausted
        (GRAMMAR_BACKLOG) past HELD_CHARACTERS; one grammar alone is always taken.
        """
        with self._lock:
            if not self._holders[grammar]:
                held = self._held_characters + len(grammar)
                if self._held_characters and held > HELD_CHARACTERS:
                    raise ResourceExhausted(
                        f"grammar: {held} characters of grammars would be live, limit {HELD_CHARACTERS}",
                        reason="GRAMMAR_BACKLOG",
                        retry_after=1.0,
                        field="grammar",
                    )
                self._held_characters = held
            self._holders[grammar] += 1
            return self._started(grammar)

    def release(self, grammar: str) -> None:
        """Takes one `hold` back."""
        with self._lock:
            self._holders[grammar] -= 1
            if not self._holders[grammar]:
                del self._holders[grammar]
                self._held_characters -= len(grammar)
                self._forget_oldest()

    def start(self, grammar: str) -> "Future[LLMatcher]":
        """A matcher at its beginning, to be copied; the same for rows with the same grammar."""
        with self._lock:
            return self._started(grammar)

    def _started(self, grammar: str) -> "Future[LLMatcher]":
        found = self._known.get(grammar)
        if found is None:
            found = self._known[grammar] = self._thread.submit(self._compile, grammar)
            self._forget_oldest()
        else:
            self._known.move_to_end(grammar)
        return found

    def _forget_oldest(self) -> None:
        while len(self._known) - len(self._holders) > _KEPT:
            del self._known[next(grammar for grammar in self._known if grammar not in self._holders)]

    def _compile(self, grammar: str) -> LLMatcher:
        """A matcher at its beginning, or one in error where the first steps could not be taken."""
        bounds = LLParserLimits(**limits(grammar))
        matcher = LLMatcher(self._tokenizer.result(), grammar, log_level=0, limits=bounds)
        ahead = matcher.deep_copy()
        ahead.compute_bitmask()
        forced = ahead.compute_ff_tokens()
        if forced and not ahead.is_error():
            ahead.consume_tokens(forced)
        return ahead if ahead.is_error() else matcher


def _read_tokenizer(path: Path, vocab_size: int, eos_ids: list[int]) -> LLTokenizer:
    """With ids up to the model's vocab_size, or to its own greatest: one may have more than the other. Raises
    NoGrammarsError.
    """
    try:
        text = path.read_text(encoding="utf-8")
        found, ends = _built(text, eos_ids)
        if found.vocab_size >= vocab_size:
            return found
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=ends)
    except (OSError, ValueError) as error:
        raise NoGrammarsError(f"{path} cannot be used: {' '.join(str(error).split())}") from error


def _built(text: str, eos_ids: list[int]) -> tuple[LLTokenizer, list[int]]:
    """The tokenizer with those of the model's ends that it has. Raises NoGrammarsError where it has none, and
    ValueError.
    """
    try:
        return LLTokenizer(text, eos_token=eos_ids), eos_ids
    except ValueError:
        size = LLTokenizer(text).vocab_size
        ends = [token_id for token_id in eos_ids if token_id < size]
        if ends == eos_ids:
            raise
    if not ends:
        given = ", ".join(map(str, eos_ids))
        raise NoGrammarsError(
            f"eos_token_id {given}: must be below {size}, the number of tokenizer.json's ids"
        )
    return LLTokenizer(text, eos_token=ends), ends


@dataclass(slots=True, eq=False)
class _Row:
    """history: tokens that the matcher is still to take in. matcher None: not asked for yet, or lost."""

    compiled: "Future[LLMatcher] | None"
    history: list[int]
    matcher: LLMatcher | None = None
    failed: bool = False

    def ready(self) -> LLMatcher | None:
        """The matcher after all tokens so far; None when it cannot go on. May wait for the compilation."""
        if self.compiled is not None:
            compiled, self.compiled = self.compiled, None
            error = compiled.exception()
            if error is None:
                self.matcher = compiled.result().deep_copy()
            else:
                self.failed = True
                expected = isinstance(error, NoGrammarsError)
                _log.error(
                    "a row fails, its grammar cannot be compiled: %s",
                    error,
                    exc_info=None if expected else error,
                )
        for token in self.history:
            self.take(token)
        self.history.clear()
        return None if self.matcher is None or self.has_failed() else self.matcher

    def has_failed(self) -> bool:
        """Whether the matcher cannot go on; the first time, the log has the reason."""
        if self.matcher is None or not self.matcher.is_error():
            return False
        if not self.failed:
            self.failed = True
            _log.warning(
                "a row fails, its grammar cannot go on: %s", " ".join(self.matcher.get_error().split())
            )
        return True

    def take(self, token: int) -> None:
        """One token more. What comes after the end (an EOS id again, an overshoot) is no matter of the
        grammar's; a row that failed has none (-1), and what it would write is no matter to anybody.
        """
        if token >= 0 and self.matcher is not None and not self.matcher.is_stopped():
            self.matcher.consume_token(token)


class Grammars:
    """The rows of one session that have a grammar. compiler None: this worker has no tokenizer."""

    def __init__(self, compiler: GrammarCompiler | None, vocab_size: int) -> None:
        self._compiler = compiler
        self._width = -(-vocab_size // 32)
        self._rows: dict[int, _Row] = {}
        self._drawn: list[tuple[list[_Row], Download, Marker]] = []
        self._executor: LLExecutor | None = None

    def set_up(self, setup: RowSetup) -> None:
        if setup.sampling.grammar:
            compiled = None if self._compiler is None else self._compiler.start(setup.sampling.grammar)
            self._rows[setup.row] = _Row(compiled, setup.output_ids.tolist())

    def release(self, rows: Int32Array) -> None:
        if self._rows:
            for row in rows.tolist():
                self._rows.pop(row, None)

    def clear(self) -> None:
        """Forgets every row; legal once the device has finished all steps."""
        self._rows.clear()
        self._drawn.clear()

    def masks(self, rows: Sequence[int]) -> Int32Array:
        """[n, ceil(vocab / 32)] int32: bit i % 32 of word i // 32 is set where a row may sample token i; none
        where the row's matcher cannot go on.

        Waits for the tokens of the steps before, which no other call of a launch does.
        """
        self._catch_up()
        states = [self._rows[row] for row in rows]
        matchers = [state.ready() for state in states]
        at_work = [(matcher, place) for place, matcher in enumerate(matchers) if matcher is not None]
        width = self._compiler.width if at_work and self._compiler is not None else self._width
        found = np.zeros((len(rows), width), np.int32)
        if at_work:
            self._executor = self._executor or LLExecutor(min(_MOST_THREADS, os.cpu_count() or 1))
            masks_of.fill_next_token_bitmask_par(self._executor, at_work, found)
        for _, place in at_work:
            if states[place].has_failed():
                found[place] = 0
        return found[:, : self._width]

    def sampled(self, rows: Sequence[int], tokens: Download, drawn: Marker) -> None:
        """What these rows sample in the step being launched; tokens can be read once `drawn` was waited
        for.
        """
        self._drawn.append(([self._rows[row] for row in rows], tokens, drawn))

    def _catch_up(self) -> None:
        drawn, self._drawn = self._drawn, []
        for rows, tokens, marker in drawn:
            marker.wait()
            for row, token in zip(rows, tokens.read().tolist(), strict=True):
                row.history.append(token)

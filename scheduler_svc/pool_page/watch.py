"""Samples for viewers: one at most every tenth of a second, shared by all of them, and none without viewers.

Owns the count of viewers, the last sample and the event log; knows neither HTTP nor what a viewer was told.
Invariant: while nobody watches, the engine is neither asked nor observed.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from scheduler_svc.engine import Engine
from scheduler_svc.pool_page.events import EventLog
from scheduler_svc.pool_page.sample import Sample, sample_of

INTERVAL_SECONDS = 0.1
MAX_VIEWERS = 8
_ANSWER_SECONDS = 5.0


class TooManyViewers(Exception):
    """One more would pass the bound."""


class PoolWatch:
    """May be called by any thread but the loop's own. clock: the engine's."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.log = EventLog(clock, engine.name_of)
        self._engine = engine
        self._loop = loop
        self._clock = clock
        self._lock = threading.Lock()
        self._viewers = 0
        self._latest: Sample | None = None

    @contextmanager
    def viewing(self) -> Iterator[None]:
        """Raises TooManyViewers when MAX_VIEWERS watch already."""
        with self._lock:
            if self._viewers >= MAX_VIEWERS:
                raise TooManyViewers(f"{self._viewers} viewers watch the pool, limit {MAX_VIEWERS}")
            self._viewers += 1
            if self._viewers == 1:
                self._loop.call_soon_threadsafe(self._engine.observe, self.log)
        try:
            yield
        finally:
            with self._lock:
                self._viewers -= 1
                if not self._viewers:
                    self._latest = None
                    if not self._loop.is_closed():
                        self._loop.call_soon_threadsafe(self._engine.observe, None)

    def sample(self) -> Sample:
        """The newest moment, at most INTERVAL_SECONDS old. Raises TimeoutError when the engine does not
        answer.
        """
        with self._lock:
            latest = self._latest
            if latest is not None and self._clock() - latest.time < INTERVAL_SECONDS:
                return latest
            question = self._engine.ask(lambda core: sample_of(core, self._engine, self._clock()))
            sample = asyncio.run_coroutine_threadsafe(question, self._loop).result(_ANSWER_SECONDS)
            if latest is not None:
                self.log.compare(latest, sample)
            self._latest = sample
            return sample

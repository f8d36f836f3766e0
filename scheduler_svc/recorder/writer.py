"""Writes the log: notes are taken in at once, encoded and written by a thread.

Owns the file and the thread; knows no meaning of an entry but where a plan is. Invariant: taking a note never
waits for the file, what waits to be written is bounded, and a recording that cannot go on ends with one line
in the log and a file whose records are whole.
"""

import contextlib
import logging
import os
import stat
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from scheduler_svc.core.plan import SchedulerConfig, StepPlan
from scheduler_svc.recorder.digest import digests_of
from scheduler_svc.recorder.format import Kind, pack, pack_header

_log = logging.getLogger(__name__)
MAX_PENDING = 32_768
"""Entries that wait to be written: some seconds of steps. More, and the recording ends."""

_PERIOD_SECONDS = 0.05
_CLOSE_SECONDS = 10.0
_SLICE = 64
"""Entries that are encoded without a pause, so that the engine's thread never waits long for its turn."""


class Recorder:
    """A recording from its start to `close`. Raises OSError when the file cannot be begun.

    path: the log; an older file of that name is kept as path.1, path.2 and so on. The file is readable for
    its owner alone, for it holds prompts. plans: writes whole plans beside their digests.
    """

    def __init__(self, path: Path, config: SchedulerConfig, *, plans: bool = False) -> None:
        self.path = path
        self.records = 0
        self.bytes = 0
        self._plans = plans
        self._pending: deque[tuple[Any, ...]] = deque()
        self._ended = False
        self._closing = threading.Event()
        self._file = _begin(path)
        try:
            self._write(pack_header(config, time.time(), plans))
        except OSError:
            os.close(self._file)
            _remove_empty(path)
            raise
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @property
    def recording(self) -> bool:
        return not self._ended

    def note(self, entry: tuple[Any, ...]) -> None:
        """Takes an entry; returns at once. For one thread."""
        if self._ended:
            return
        self._pending.append(entry)
        if len(self._pending) > MAX_PENDING:
            self._end(f"{MAX_PENDING} records wait to be written")

    def close(self) -> None:
        """Writes what waits, and that the recording ended in order. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            _log.error("recording to %s: the file takes no more; its end is lost", self.path)
            return
        if not self._ended:
            self._ended = True
            with contextlib.suppress(OSError):
                self._write(pack((int(Kind.END),)))
                os.fsync(self._file)
            _log.info("recording ended: %d records, %d bytes in %s", self.records, self.bytes, self.path)
        os.close(self._file)

    def _run(self) -> None:
        while not self._ended:
            closing = self._closing.wait(_PERIOD_SECONDS)
            try:
                while self._pending and not self._ended:
                    self._write_slice()
            except OSError as error:
                self._end(error.strerror or str(error))
            if closing:
                break
        self._pending.clear()

    def _write_slice(self) -> None:
        taken = [self._pending.popleft() for _ in range(min(_SLICE, len(self._pending)))]
        self._write(b"".join(map(self._encoded, taken)))
        self.records += len(taken)
        time.sleep(0)

    def _encoded(self, entry: tuple[Any, ...]) -> bytes:
        if isinstance(entry[-1], StepPlan):
            plan = entry[-1]
            described = (*entry[:-1], plan.step_id, digests_of(plan))
            return pack((*described, plan) if self._plans else described)
        return pack(entry)

    def _write(self, data: bytes) -> None:
        """Raises OSError; then the file ends with the last whole write."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.bytes)
            raise
        self.bytes += len(data)

    def _end(self, reason: str) -> None:
        self._ended = True
        _log.error(
            "recording to %s ended after %d records, %d bytes: %s; serving goes on",
            *(self.path, self.records, self.bytes, reason),
        )


def _begin(path: Path) -> int:
    """An empty file for its owner alone; an older regular file is renamed."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.stat().st_mode):
            return os.open(path, os.O_WRONLY)
        number = 1
        while (kept := path.with_name(f"{path.name}.{number}")).exists():
            number += 1
        path.rename(kept)
        _log.info("%s was there before; it is now %s", path, kept)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def _remove_empty(path: Path) -> None:
    """A log that could not be begun leaves none behind, which the next start would only move away."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(path.stat().st_mode):
            path.unlink()

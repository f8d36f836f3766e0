"""One child process: its start, its lines, its end.

Owns the process and its pipes; knows no policy of restarts. Invariant: after `run` returns, the process and
every process of its group are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from octavo_client.supervisor.events import Line, News, Serving, Started

LAUNCH = str(Path(__file__).with_name("launch.py"))
_POLL_SECONDS = 0.05
_DRAIN_SECONDS = 1.0


LISTEN = "{listen}"
"""Stands in a command for the address at which the child named by `after` serves."""


@dataclass(frozen=True)
class ChildSpec:
    """What to run. env is added to the supervisor's own environment.

    after: the name of a child that has to serve before this one starts; empty: none. check: the command that
    reads the same command line and does nothing else; empty: none.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    check: Sequence[str] = ()


class Child:
    """One run of a spec."""

    def __init__(self, spec: ChildSpec, attempt: int, notify: Callable[[News], None]) -> None:
        self._spec = spec
        self._attempt = attempt
        self._notify = notify
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self.serving_since: float | None = None
        self.last_line = ""

    @property
    def name(self) -> str:
        return self._spec.name

    async def run(self) -> int:
        """Starts the process and waits for its end; returns its exit code, negative for a signal.

        Call it from the main thread: the kernel's tie is to the thread that starts the child. Raises OSError
        when the process cannot be started.
        """
        process = self._start()
        assert process.stdout is not None
        assert process.stderr is not None
        self._notify(Started(self.name, process.pid, self._attempt))
        readers = [
            asyncio.create_task(self._read(process.stdout, self._take_stdout)),
            asyncio.create_task(self._read(process.stderr, self._take_line)),
        ]
        try:
            while process.poll() is None:  # noqa: ASYNC110 - there is no event of a child that every platform has
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self._signal_group(signal.SIGKILL)
            code = process.wait()
            await self._finish(readers)
        return code

    @property
    def served_seconds(self) -> float:
        """Seconds since the serving line; 0 when there was none."""
        return 0.0 if self.serving_since is None else time.monotonic() - self.serving_since

    def terminate(self) -> None:
        """Asks the process to end (SIGTERM)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process and its group at once."""
        self._signal_group(signal.SIGKILL)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", LAUNCH, str(os.getpid()), *self._spec.command]
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self._spec.env},
            start_new_session=True,
        )
        return self._process

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    async def _finish(self, readers: list[asyncio.Task[None]]) -> None:
        """What the process wrote last is still read; a pipe that stays open is given up."""
        _done, pending = await asyncio.wait(readers, timeout=_DRAIN_SECONDS)
        for task in pending:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    async def _read(self, pipe: IO[bytes], take: Callable[[str], None]) -> None:
        """Hands every line to `take`; lines may be of any length, the last may lack its end."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        rest = b""
        try:
            while data := await reader.read(1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    take(line.decode("utf-8", "replace").rstrip("\r"))
            if rest:
                take(rest.decode("utf-8", "replace"))
        finally:
            transport.close()

    def _take_line(self, text: str) -> None:
        if text.strip():
            self.last_line = text
        self._notify(Line(self.name, text))

    def _take_stdout(self, text: str) -> None:
        """A line of stdout: the serving line is news of its own, anything else is a line."""
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict) or value.get("event") != "serving":
            self._take_line(text)
            return
        self.serving_since = time.monotonic()
        seconds = self.serving_since - self._started
        port = value.get("metrics_port")
        self._notify(
            Serving(self.name, str(value.get("listen", "")), port if isinstance(port, int) else 0, seconds)
        )

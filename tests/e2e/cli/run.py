"""Runs the `octavo` command as a user would, and talks to it through a terminal.

Owns the processes of one test; knows no command. Invariant: a command that does not end in time is killed and
the test fails.
"""

import codecs
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.processes import REPOSITORY, child_environment

SECONDS = 100.0
_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_CUT_CODE = re.compile(r"\x1b(\[[0-9;?]*)?\Z")
"""A code of which the rest is still to come."""


@dataclass(frozen=True)
class Done:
    """What a command printed and its exit code."""

    code: int
    out: str
    err: str


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "octavo_client.cli", *arguments]


def octavo(*arguments: str, stdin: str | None = None, env: dict[str, str] | None = None) -> Done:
    """The command, run to its end, with pipes for its streams. No text on stdin means an empty one."""
    done = subprocess.run(
        command(*arguments),
        input=stdin or "",
        capture_output=True,
        encoding="utf-8",
        cwd=REPOSITORY,
        env=child_environment() | (env or {}),
        timeout=SECONDS,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Background:
    """A command that goes on; its output goes to files."""

    def __init__(self, folder: Path, *arguments: str, stdin: str = "") -> None:
        self.out, self.err = folder / "command.out", folder / "command.err"
        (folder / "command.in").write_text(stdin)
        with (folder / "command.in").open() as given, self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                command(*arguments),
                stdin=given,
                stdout=out,
                stderr=err,
                cwd=REPOSITORY,
                env=child_environment(),
            )

    def wait_for(self, text: str, where: Path | None = None) -> str:
        """Waits until the output holds the text; returns the output."""
        end = time.monotonic() + SECONDS
        while True:
            over = self.process.poll() is not None or time.monotonic() > end  # before its last words are read
            said = (where or self.out).read_text(errors="replace")
            if text in said:
                return said
            if over:
                raise AssertionError(f"{text!r} did not come; out: {said}\nerr: {self.err.read_text()}")
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> int:
        """Sends the signal and returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Terminal:
    """A command in a terminal of its own: type, and read what it shows without colours."""

    def __init__(self, *arguments: str) -> None:
        self._side, inner = pty.openpty()
        os.set_blocking(self._side, False)
        env = child_environment() | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        self.process = subprocess.Popen(
            command(*arguments),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=REPOSITORY,
            env=env,
            start_new_session=True,
        )
        os.close(inner)
        self._shown = self._cut = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def hang_up(self) -> None:
        """Closes the terminal; the command is in no session of it, so no signal comes."""
        os.close(self._side)

    def wait_for(self, text: str) -> str:
        """Waits until the text is shown; returns and forgets everything up to it."""
        end = time.monotonic() + SECONDS
        while text not in self._shown:
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} was not shown: {self._shown}")
            self._read()
        before, found, self._shown = self._shown.partition(text)
        return before + found

    def end(self) -> int:
        """Waits for the end and returns the exit code."""
        end = time.monotonic() + SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            self._read()
        self.close()
        return int(self.process.returncode)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._side)

    def _read(self) -> None:
        """Takes what is there, which may end inside a character or a code."""
        try:
            text = self._cut + self._decoder.decode(os.read(self._side, 65536))
        except (BlockingIOError, OSError):
            time.sleep(0.02)
            return
        whole = _CUT_CODE.sub("", text)
        self._cut = text[len(whole) :]
        self._shown += _CODES.sub("", whole)

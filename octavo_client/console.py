"""How the command writes to a terminal: colours when somebody looks, plain text in a pipe.

Owns the consoles and the look of news from the supervisor; knows no process. Invariant: text from services
and models is never read as markup or as terminal control codes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any, TextIO, TypeVar, cast

from rich.console import Console
from rich.text import Text

from octavo_client.supervisor.events import Died, Line, News, Serving, Started, Stopped
from octavo_client.supervisor.lines import parse, readable

T = TypeVar("T")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NAME_STYLES = {"worker": "cyan", "scheduler": "magenta", "gateway": "blue"}
_LEVEL_STYLES = {"warning": "yellow", "error": "bold red", "critical": "bold red", "debug": "dim"}


class Unread:
    """A text stream whose reader may go away: what it cannot write is dropped, then and later.

    A terminal that was closed or a pipe that was left must not end, or keep alive, what only reports there.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._try(lambda: self._stream.write(text), len(text))

    def flush(self) -> None:
        self._try(self._stream.flush, None)

    def _try(self, act: Callable[[], T], otherwise: T) -> T:
        try:
            return act()
        except OSError:  # the buffer keeps what failed: let it drain into nothing
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            return otherwise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_readers() -> None:
    """From now on stdout and stderr may lose their readers."""
    sys.stdout, sys.stderr = (cast(TextIO, Unread(stream)) for stream in (sys.stdout, sys.stderr))


def stdout_console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def stderr_console() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def safe(text: str) -> str:
    """The text without terminal control codes; newlines and tabs stay."""
    return _CONTROL.sub("", text)


def write_model_text(text: str) -> None:
    """Writes a piece of a model's answer to stdout at once; control codes only pass into a pipe."""
    sys.stdout.write(safe(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def news_text(news: News) -> Text:
    """One line about one piece of news."""
    line = Text(f"{news.name:<9} ", style=_NAME_STYLES.get(news.name, "blue"))
    match news:
        case Started():
            again = "" if news.attempt == 1 else f", start number {news.attempt}"
            line.append(f"process {news.pid} started{again}", style="dim")
        case Serving():
            line.append(f"serving on {news.listen} after {news.seconds:.1f} s", style="green")
        case Died(restart_in=None):
            line.append(f"{news.how}: {safe(readable(news.last_line))}", style="bold red")
        case Died():
            line.append(f"{news.how}; starting it again in {news.restart_in:.1f} s", style="yellow")
        case Stopped():
            line.append(news.how, style="dim")
        case Line():
            _append_log(line, news.text)
    return line


def _append_log(line: Text, text: str) -> None:
    parsed = parse(text)
    if parsed.clock:
        line.append(f"{parsed.clock} ", style="dim")
    if parsed.level != "info":
        line.append(f"{parsed.level} ", style=_LEVEL_STYLES.get(parsed.level, ""))
    line.append(safe(parsed.message))
    if parsed.context:
        line.append(f"  {safe(parsed.context)}", style="dim")
    if parsed.detail:
        line.append("\n" + safe(parsed.detail), style="dim")

"""`octavo top`: the KV pool and the requests, live.

Owns the loop and the rates; the drawing is pool_view's. Invariant: a scheduler that goes away is waited
for, not an end.
"""

from __future__ import annotations

import argparse
import contextlib
import time

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from octavo.command_line import real
from octavo_client import pool_view
from octavo_client.client import Client
from octavo_client.commands.options import add_server
from octavo_client.console import safe, stdout_console
from octavo_client.errors import NotFound, OctavoError, Unavailable
from octavo_client.pool_view import EXPLAINED, Picture, Rates
from octavo_client.views import Explanation, PoolStats

_ONCE_SECONDS = 0.3
_SMALLEST_INTERVAL = 0.05


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=real(_SMALLEST_INTERVAL),
        default=0.5,
        metavar="S",
        help="seconds between frames (%(default)s)",
    )
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    console = stdout_console()
    with Client(arguments.server, timeout=5.0) as client:
        watcher = Watcher(client)
        if arguments.once:
            watcher.read()
            time.sleep(_ONCE_SECONDS)
            console.print(watcher.picture(console))
            return 0
        watcher.read()
        with contextlib.suppress(KeyboardInterrupt):
            _live(watcher, console, arguments.interval)
        return 0


def _live(watcher: Watcher, console: Console, interval: float) -> None:
    with Live(console=console, screen=console.is_terminal, auto_refresh=False, transient=True) as live:
        while True:
            live.update(_picture_or_reason(watcher, console), refresh=True)
            time.sleep(interval)


def _picture_or_reason(watcher: Watcher, console: Console) -> RenderableType:
    try:
        return watcher.picture(console)
    except Unavailable as error:
        return Text(f"{error.message}\ntrying again ...", style="yellow")


class Watcher:
    """Reads the scheduler and keeps the last reading for the rates."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._last: tuple[float, PoolStats] | None = None
        self._model = ""

    def read(self) -> tuple[PoolStats, Rates | None]:
        """A reading and the rates since the one before; none after a restart of the scheduler."""
        stats, now = self._client.stats(requests=True), time.monotonic()
        rates = None
        if self._last is not None and stats.steps >= self._last[1].steps:
            seconds = max(1e-6, now - self._last[0])
            before = self._last[1]
            rates = Rates(
                (stats.generated_tokens - before.generated_tokens) / seconds,
                (stats.steps - before.steps) / seconds,
            )
        self._last = (now, stats)
        return stats, rates

    def picture(self, console: Console) -> RenderableType:
        stats, rates = self.read()
        picture = Picture(self._title(stats), stats, self._client.pool_map(), rates, self._waiting(stats))
        return pool_view.frame(picture, console.width, console.height)

    def _waiting(self, stats: PoolStats) -> tuple[Explanation, ...]:
        """Why the first few of those that wait do so; one that ended meanwhile is left out."""
        found = []
        for request in [r for r in stats.requests if r.state != "running"][:EXPLAINED]:
            with contextlib.suppress(NotFound):
                found.append(self._client.explain(request.request_id, request.index))
        return tuple(found)

    def _title(self, stats: PoolStats) -> Text:
        title = Text("octavo ", style="bold")
        title.append(f"{safe(self._model_name())} at {self._client.target}  ", style="default not bold")
        if stats.worker_ready:
            return title.append(f"worker ready, epoch {stats.worker_epoch}", style="green not bold")
        return title.append("no worker", style="red not bold")

    def _model_name(self) -> str:
        """Asked until it is known: a scheduler without a worker may not know its model yet."""
        if not self._model:
            try:
                self._model = self._client.model_info().model_id
            except OctavoError:
                return "?"
        return self._model

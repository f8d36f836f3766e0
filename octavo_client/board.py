"""What `octavo serve` prints: news of the processes, changes of health, and how to talk to them.

Owns the words; knows no process and starts nothing. Invariant: as JSON, logs are on stderr and the serving
lines alone on stdout, as the services write them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Protocol

from rich.console import Console
from rich.text import Text

from octavo.logging import announce_serving
from octavo_client.aio import AsyncClient
from octavo_client.channel import DEFAULT_SERVER
from octavo_client.console import news_text
from octavo_client.errors import OctavoError
from octavo_client.supervisor.events import Line, News, Serving

_WATCH_SECONDS = 0.25
_METHOD = "octavo.v1.InferenceService/Generate"
_BODY = json.dumps({"text": "The capital of France is", "stopping": {"max_tokens": 16}})


class Board(Protocol):
    """Where news goes."""

    def take(self, news: News) -> None: ...

    async def watch(self) -> None: ...

    def stopping(self, again: bool) -> None: ...

    def close(self) -> None: ...


class JsonBoard:
    """Hands the services' own lines on."""

    def take(self, news: News) -> None:
        if isinstance(news, Serving):
            announce_serving(news.name, news.listen, news.metrics_port)
        elif isinstance(news, Line):
            print(news.text, file=sys.stderr, flush=True)

    async def watch(self) -> None:
        pass

    def stopping(self, again: bool) -> None:
        pass

    def close(self) -> None:
        pass


class TerminalBoard:
    """Readable lines, and a spinner in a terminal while nothing can be served."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._serving: dict[str, Serving] = {}
        self._known = asyncio.Event()
        self._ending = False
        self._status = console.status("starting") if console.is_terminal else None
        if self._status is not None:
            self._status.start()

    def take(self, news: News) -> None:
        if isinstance(news, Serving):
            self._serving[news.name] = news
            self._known.set()
        self._console.print(news_text(news))

    def stopping(self, again: bool) -> None:
        """Says that the end has begun; from now on nothing is said about health."""
        self._ending = True
        self.close()
        words = (
            "ending at once" if again else "stopping: running requests may finish; Ctrl-C again ends at once"
        )
        self._say(words, "yellow")

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()

    async def watch(self) -> None:
        """Polls health and prints each change."""
        while "scheduler" not in self._serving:
            await self._known.wait()
            self._known.clear()
        loop = asyncio.get_running_loop()
        since, ready, first = loop.time(), False, True
        async with AsyncClient(self._serving["scheduler"].listen, timeout=2.0) as client:
            while not self._ending:
                missing = await client.readiness()
                if (missing == "") != ready and not self._ending:
                    ready, waited, since = missing == "", loop.time() - since, loop.time()
                    await self._changed(client, ready, waited, first)
                    first = False
                if not ready and self._status is not None:
                    self._status.update(f"waiting: {missing} ({loop.time() - since:.0f} s)")
                await asyncio.sleep(_WATCH_SECONDS)

    async def _changed(self, client: AsyncClient, ready: bool, waited: float, first: bool) -> None:
        if self._status is not None:
            self._status.stop() if ready else self._status.start()
        if not ready:
            self._say("not ready: no worker; streams wait", "yellow")
        elif not first:
            self._say(f"ready again after {waited:.1f} s", "green")
        else:
            self._console.print(await self._how_to_talk(client))

    def _say(self, words: str, style: str) -> None:
        self._console.print(Text(f"octavo    {words}", style=style))

    async def _how_to_talk(self, client: AsyncClient) -> Text:
        address = client.target
        text = Text("octavo    ready", style="bold green")
        text.append(await _served(client), style="not bold default")
        here = "" if address == DEFAULT_SERVER else f" --server {address}"
        metrics = "  ".join(
            f"{name} http://127.0.0.1:{news.metrics_port}/metrics"
            for name, news in sorted(self._serving.items())
            if news.metrics_port
        )
        gateway = self._serving.get("gateway")
        rows = [
            ("chat", f'octavo chat{here} "What is a KV cache?"'),
            ("watch", f"octavo top{here}"),
            ("grpcurl", f"grpcurl -plaintext -d '{_BODY}' {address} {_METHOD}"),
            (
                "buf",
                f"buf curl --protocol grpc --http2-prior-knowledge -d '{_BODY}' http://{address}/{_METHOD}",
            ),
            ("metrics", metrics or "off"),
            ("stop", "Ctrl-C"),
        ]
        if gateway is not None:
            rows.insert(-2, ("http", _curl(gateway.listen)))
        for name, command in rows:
            text.append(f"\n  {name:<8}", style="not bold cyan").append(command, style="not bold default")
        return text


def _curl(address: str) -> str:
    body = json.dumps({"prompt": "The capital of France is"})
    return f"curl http://{address}/v1/completions -H 'content-type: application/json' -d '{body}'"


async def _served(client: AsyncClient) -> str:
    """Model and pool in words."""
    try:
        info, stats = await client.model_info(), await client.stats()
    except OctavoError as error:
        return f" ({error.message})"
    size = stats.num_blocks * stats.bytes_per_block / 2**20
    return (
        f": {info.model_id}, {stats.num_blocks} blocks of {stats.block_size} tokens"
        f" ({size:,.0f} MiB of {info.kv_dtype} KV pool)"
    )

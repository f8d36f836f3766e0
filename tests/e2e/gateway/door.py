"""The gateway in front of a real scheduler and a fake worker, and plain HTTP to it.

Owns the pairing and the reading of server-sent events byte by byte; knows no scenario. Invariant: nothing
here trusts a client library to be strict.
"""

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from openai import AsyncOpenAI

from scheduler_svc.text import TextModel
from tests.e2e.processes import ServiceProcess
from tests.e2e.rig import Rig
from tests.e2e.service import PATIENCE

PROMPT = "Tell me"


@dataclass
class Door:
    """One gateway. http: for its paths; openai: the real client, without retries."""

    process: ServiceProcess
    rig: Rig
    text: TextModel
    http: httpx2.AsyncClient
    openai: AsyncOpenAI

    @property
    def url(self) -> str:
        return url_of(self.process)

    def script(self, text: str, prompt: str = PROMPT) -> list[int]:
        """Makes the fake worker answer the prompt with the tokens of a text; returns them."""
        ids: list[int] = self.text.encode(text).tolist()
        self.rig.fake.script(self.text.encode(prompt).tolist(), ids)
        return ids

    async def post(self, path: str, body: object, **options: Any) -> httpx2.Response:
        return await self.http.post(path, json=body, **options)

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The data of a stream's events, whose framing is checked; the last is "[DONE]" or an error."""
        answer = await self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        return events_of(answer.content)

    async def idle(self) -> None:
        """Waits until no request holds a block any more."""
        await self.rig.service.wait_idle()


def events_of(body: bytes) -> list[Any]:
    """The events of a whole stream: each is `data: ` and one line, then an empty line."""
    assert body.endswith(b"\n\n")
    found: list[Any] = []
    for block in body.removesuffix(b"\n\n").split(b"\n\n"):
        assert block.startswith(b"data: ")
        assert b"\n" not in block
        data = block.removeprefix(b"data: ").decode()
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the connection ends, perhaps by force: what came before a reset counts."""
    found = b""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                piece = await reader.read(1 << 16)
            except ConnectionError:
                return found + bytes(reader._buffer)  # type: ignore[attr-defined]
            if not piece:
                return found
            found += piece


def allow_many_sockets(count: int) -> None:
    """This process holds as many sockets as a crowd has, twice over."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * count)), hard))


def url_of(process: ServiceProcess) -> str:
    return f"http://{process.address}"


@asynccontextmanager
async def door_at(
    process: ServiceProcess, rig: Rig, text: TextModel, key: str = "none"
) -> AsyncIterator[Door]:
    headers = {"authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(base_url=url_of(process), headers=headers, timeout=PATIENCE) as http,
        AsyncOpenAI(base_url=f"{url_of(process)}/v1", api_key=key, max_retries=0, timeout=PATIENCE) as openai,
    ):
        yield Door(process, rig, text, http, openai)

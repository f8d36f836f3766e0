"""Chats over HTTP: two turns of a question out of MT-bench, as a person asks them.

Owns the requests; knows the gateway by its HTTP alone. Invariant: the second turn repeats the first one and
its answer, so that its prefix can be found.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2

QUESTIONS = Path(__file__).resolve().parents[1] / "data" / "prompts" / "mt_bench.jsonl"
SYSTEM = "You are a helpful assistant. Answer in one short sentence."
_PATH = "/v1/chat/completions"
_ANSWER_TOKENS = 48


class Chats:
    """Clients of one gateway."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http
        lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
        self._questions: list[list[str]] = [json.loads(line)["turns"] for line in lines]

    async def talk(self, number: int) -> None:
        """One question after the other, for ever; every third is answered twice at once."""
        count = len(self._questions)
        for asked in range(number, 1_000_000):
            messages = [{"role": "system", "content": SYSTEM}]
            for turn in self._questions[asked % count]:
                messages.append({"role": "user", "content": turn})
                text = await self._answer(messages, n=1 + (asked % 3 == 0))
                messages.append({"role": "assistant", "content": text})

    async def hang_up(self) -> None:
        """Leaves in the middle of an answer, then asks for nonsense."""
        messages = [{"role": "user", "content": self._questions[0][0]}]
        while True:
            async with self._http.stream("POST", _PATH, json=_body(messages, 1)) as answer:
                async for _ in answer.aiter_bytes():
                    break
            refused = await self._http.post(_PATH, json={"messages": []})
            assert refused.status_code == 400, refused.text
            await asyncio.sleep(2)

    async def _answer(self, messages: list[dict[str, str]], n: int) -> str:
        answer = await self._http.post(_PATH, json=_body(messages, n))
        assert answer.status_code == 200, answer.text
        parts: list[str] = []
        for line in answer.content.split(
            b"\n"
        ):  # not by what else ends a line in Unicode: the text is random
            if line.startswith(b"data: {"):
                choices = json.loads(line.removeprefix(b"data: "))["choices"]
                parts += [one["delta"].get("content") or "" for one in choices if one["index"] == 0]
        return "".join(parts)


def _body(messages: list[dict[str, str]], n: int) -> dict[str, Any]:
    return {"messages": messages, "n": n, "max_tokens": _ANSWER_TOKENS, "temperature": 1.0, "stream": True}

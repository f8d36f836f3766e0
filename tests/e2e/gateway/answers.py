"""A request that is good, and what an answer that is none must look like."""

from typing import Any

import httpx2

from tests.e2e.gateway.door import PROMPT, Door
from tests.e2e.rig import prompt_of, wanted

COMPLETIONS = "/v1/completions"
GOOD: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    """The error of an answer, whose shape is checked."""
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in body["error"]["message"]
    found: dict[str, Any] = body["error"]
    return found


async def works(door: Door) -> None:
    prompt = prompt_of(6)
    answer = await door.post(
        COMPLETIONS, {**GOOD, "prompt": prompt, "ignore_eos": True, "return_token_ids": True}
    )
    assert answer.json()["choices"][0]["token_ids"] == wanted(prompt, 1)

"""What the container test asks of a running deployment, and how it waits and fails.

Owns the prompt, its greedy answer over gRPC, and the patience; knows neither Compose nor the order of the
story. Invariant: what is not so within its time raises Failed, whose message is one line.
"""

import json
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from octavo_client import Client
from octavo_client.types import Delta, Finished, FinishReason

STREAM_SECONDS = 240.0
PROMPT = "Q: What is the capital of France, and what is it known for?\nA:"


class Failed(Exception):
    """Something that must be true is not; the message is one line."""


def say(text: str) -> None:
    sys.stdout.write(f"compose-test: {text}\n")
    sys.stdout.flush()


def require(condition: bool, text: str) -> None:
    if not condition:
        raise Failed(text)


def wait_for(what: str, ready: Callable[[], str], seconds: float) -> None:
    """Asks until the answer is empty. Raises Failed with the last answer."""
    end = time.monotonic() + seconds
    while (missing := ready()) != "":
        require(time.monotonic() < end, f"{what}: not within {seconds:.0f} s: {missing}")
        time.sleep(1.0)


def answer(client: Client, max_tokens: int, at: Callable[[int], None] | None = None) -> tuple[int, ...]:
    """The greedy tokens of the prompt, always to the full length. at: told the tokens so far."""
    tokens: list[int] = []
    options = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
    with client.stream(PROMPT, deadline=STREAM_SECONDS, **options) as stream:  # type: ignore[arg-type]
        for event in stream:
            if isinstance(event, Delta):
                tokens.extend(event.token_ids)
                if at is not None:
                    at(len(tokens))
            elif isinstance(event, Finished):
                require(event.reason is FinishReason.LENGTH, f"the stream ended with {event.reason}")
    require(len(tokens) == max_tokens, f"{len(tokens)} tokens came, not {max_tokens}")
    return tuple(tokens)


def once(number: int, action: Callable[[], object]) -> Callable[[int], None]:
    """Does something on another thread, once so many tokens are there."""
    started = threading.Event()

    def at(tokens: int) -> None:
        if tokens >= number and not started.is_set():
            started.set()
            threading.Thread(target=action, daemon=True).start()

    return at


def get_json(url: str) -> Any:
    """The answer of a server, as JSON."""
    with urllib.request.urlopen(url, timeout=10) as reply:
        return json.load(reply)

"""The HTTP gateway, as the container test asks it: OpenAI's completions, whole and streamed.

Owns the requests and the reading of server-sent events; knows no container. Invariant: a stream counts only
when it ended with [DONE], and a refusal keeps its status.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any


class HttpRefusedError(Exception):
    """An answer that is not 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


class HttpDoor:
    """One gateway. base: http://host:port. key: an accepted API key; empty: none is sent."""

    def __init__(self, base: str, key: str, seconds: float) -> None:
        self._base = base
        self._key = key
        self._seconds = seconds

    def completion(self, prompt: str, max_tokens: int) -> str:
        """The greedy text, always to the full length. Raises HttpRefusedError, OSError."""
        with self._post(prompt, max_tokens, stream=False) as reply:
            return str(json.load(reply)["choices"][0]["text"])

    def streamed(self, prompt: str, max_tokens: int) -> str:
        """The same text, out of its events. Raises HttpRefusedError, OSError."""
        with self._post(prompt, max_tokens, stream=True) as reply:
            return "".join(_texts(reply))

    def _post(self, prompt: str, max_tokens: int, *, stream: bool) -> Any:
        asked = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        data = json.dumps({**asked, "stream": stream}).encode()
        request = urllib.request.Request(f"{self._base}/v1/completions", data, headers)
        try:
            return urllib.request.urlopen(request, timeout=self._seconds)
        except urllib.error.HTTPError as error:
            with error:
                raise HttpRefusedError(error.code, error.read(300).decode("utf-8", "replace")) from error


def _texts(lines: Any) -> Iterator[str]:
    for line in lines:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name != "data":
            continue
        if value == "[DONE]":
            return
        event = json.loads(value)
        if "error" in event:
            raise HttpRefusedError(200, json.dumps(event["error"]))
        yield "".join(choice["text"] for choice in event["choices"])
    raise HttpRefusedError(200, "the stream ended without [DONE]")

"""The HTTP face of the pool page: its files, the stream of updates, and the answers to clicks.

Owns paths, headers and who may look; knows neither the pool nor the listener. Invariant: without the token,
where there is one, or under a foreign host name, where there is none, nothing of the pool is told.

The stream is server-sent events in plain HTTP: `curl -N` shows it, a browser needs no library, and it goes
one way, which is all that is needed. It is read with `fetch`, not EventSource, so that the token travels in a
header and never in an address.
"""

import asyncio
import hmac
import ipaddress
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from typing import Any, TypeVar
from wsgiref.types import StartResponse, WSGIEnvironment

from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.engine import Engine
from scheduler_svc.inspect import KvCacheService
from scheduler_svc.pool_page.details import block_details, sequence_details
from scheduler_svc.pool_page.updates import Viewer
from scheduler_svc.pool_page.watch import INTERVAL_SECONDS, PoolWatch, TooManyViewers

ROOT = "/pool"
_ANSWER_SECONDS = 5.0
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = [
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
]
T = TypeVar("T")


class PoolSite:
    """A WSGI application for everything under ROOT. token: empty for none. clock: the engine's."""

    def __init__(
        self,
        engine: Engine,
        inspector: KvCacheService,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        token: str,
    ) -> None:
        self._engine = engine
        self._inspector = inspector
        self._loop = loop
        self._clock = clock
        self._token = token
        self._watch = PoolWatch(engine, loop, clock)
        self._stopped = threading.Event()
        folder = resources.files(__package__) / "static"
        self._files = {item.name: item.read_bytes() for item in folder.iterdir() if item.is_file()}

    def stop(self) -> None:
        """Ends all streams."""
        self._stopped.set()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "").removeprefix(ROOT).strip("/")
        if environ.get("REQUEST_METHOD") != "GET":
            return _plain(start_response, "405 Method Not Allowed", "only GET is known here")
        if environ.get("PATH_INFO") == ROOT:
            start_response("302 Found", [("Location", f"{ROOT[1:]}/"), *_HEADERS])
            return []
        if path in self._files or not path:
            return self._file(start_response, path or "index.html")
        if not self._token and not _is_this_machine(environ.get("HTTP_HOST", "")):
            return _plain(start_response, "403 Forbidden", "Host: without a token, only this machine's names")
        if not self._may_look(environ.get("HTTP_AUTHORIZATION", "")):
            return _plain(start_response, "401 Unauthorized", "Authorization: the page's token is needed")
        if path == "stream":
            return self._stream(start_response)
        kind, _, number = path.partition("/")
        if number.isdecimal() and len(number) <= 18:
            if kind == "block":
                return self._answer(
                    start_response,
                    lambda core: block_details(core, self._engine, int(number), self._clock()),
                )
            if kind == "sequence":
                return self._answer(
                    start_response, lambda core: sequence_details(core, self._inspector, int(number))
                )
        return _plain(start_response, "404 Not Found", "no such path")

    def _may_look(self, authorization: str) -> bool:
        given = authorization.removeprefix("Bearer ").encode()
        return not self._token or hmac.compare_digest(given, self._token.encode())

    def _file(self, start_response: StartResponse, name: str) -> list[bytes]:
        kind = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        start_response("200 OK", [("Content-Type", f"{kind}; charset=utf-8"), *_HEADERS])
        return [self._files[name]]

    def _answer(
        self, start_response: StartResponse, question: Callable[[Scheduler], dict[str, Any] | None]
    ) -> list[bytes]:
        asked = asyncio.run_coroutine_threadsafe(self._engine.ask(question), self._loop)
        answer = asked.result(_ANSWER_SECONDS)
        if answer is None:
            return _plain(start_response, "404 Not Found", "it is not there any more")
        start_response("200 OK", [("Content-Type", "application/json"), *_HEADERS])
        return [json.dumps(answer).encode()]

    def _stream(self, start_response: StartResponse) -> Iterable[bytes]:
        viewing = self._watch.viewing()
        try:
            viewing.__enter__()
        except TooManyViewers as error:
            return _plain(start_response, "503 Service Unavailable", str(error))
        start_response("200 OK", [("Content-Type", "text/event-stream"), *_HEADERS])
        return self._updates(viewing)

    def _updates(self, viewing: Any) -> Iterator[bytes]:
        """One update each INTERVAL_SECONDS, or later where the reader is slow: the next one waits for the
        socket, and is the difference from what was sent to the moment it is made.
        """
        viewer, seen = Viewer(), self._watch.log.last
        try:
            while not self._stopped.is_set():
                due = self._clock() + INTERVAL_SECONDS
                sample = self._watch.sample()
                events, missed = self._watch.log.since(seen)
                seen += len(events) + missed
                yield b"data: " + viewer.update(sample, events, missed).encode() + b"\n\n"
                self._stopped.wait(max(0.0, due - self._clock()))
        finally:
            viewing.__exit__(None, None, None)


def _is_this_machine(host: str) -> bool:
    """Whether a Host header names this machine alone; a site of somebody else's that points here does not."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _plain(start_response: StartResponse, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), *_HEADERS])
    return [text.encode() + b"\n"]

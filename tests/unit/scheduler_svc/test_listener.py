"""The listener of metrics and the pool page: who sends nothing, or a byte now and then, is let go."""

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from scheduler_svc import listener
from scheduler_svc.listener import Listener

SECONDS = 0.5


def app(_environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


@pytest.fixture
def first_came(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the first client has come, who is let go soon; those behind it have their full time."""
    came = threading.Event()

    class Handler(listener._Handler):
        timeout = SECONDS

        def setup(self) -> None:
            super().setup()
            Handler.timeout = listener.IDLE_SECONDS
            came.set()

    monkeypatch.setattr(listener, "_Handler", Handler)
    return came


@pytest.fixture
def port() -> Iterator[int]:
    served = Listener(app)
    yield served.start("127.0.0.1", 0)
    served.stop()


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("trickles", [False, True])
def test_a_head_that_does_not_end_is_let_go_and_others_are_served(
    first_came: threading.Event, port: int, trickles: bool
) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert first_came.wait(20)
        over = threading.Event()

        def trickle() -> None:
            while not over.wait(SECONDS / 10):
                try:
                    client.sendall(b"a")
                except OSError:
                    return

        sender = threading.Thread(target=trickle)
        if trickles:
            sender.start()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            assert answer.read() == b"hello"
        assert ended(client)
        over.set()
        if trickles:
            sender.join()


def test_a_head_in_pieces_is_read(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        for piece in (b"GET /", b" HTTP/1.1\r\nhost", b": x\r\n", b"\r\n"):
            client.sendall(piece)
            time.sleep(SECONDS / 20)
        found = b""
        while data := client.recv(4096):
            found += data
    assert found.startswith(b"HTTP/1.0 200 OK\r\n")
    assert found.endswith(b"hello")

"""The client's channel in front of a server that is slow to say its first word."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from octavo_client import Client
from tests.unit.client.stub import StubScheduler

SLOWER_THAN_THE_FIRST_RETRY = 0.6


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


@pytest.fixture
def slow_address(stub: StubScheduler) -> Iterator[str]:
    """The stub behind a listener that passes nothing on for a while after each connection."""
    host, port = stub.address.rsplit(":", 1)
    listener = socket.create_server(("127.0.0.1", 0))
    sockets: list[socket.socket] = [listener]

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                time.sleep(SLOWER_THAN_THE_FIRST_RETRY)
                far = socket.create_connection((host, int(port)))
                sockets.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


def test_a_server_slow_to_connect_is_waited_for(slow_address: str) -> None:
    with Client(slow_address) as client:
        assert client.generate("hello there").choices

"""Encoding a long prompt in a thread, while the event loop has other streams to serve."""

import threading
import time
from collections.abc import Callable

from tests.unit.text.conftest import Pair


def test_a_long_text_is_encoded_without_the_interpreter_lock(pair: Callable[[str], Pair]) -> None:
    model = pair("byte_level").model
    beats, done = 0, threading.Event()

    def beat() -> None:
        nonlocal beats
        while not done.is_set():
            time.sleep(0.0005)
            beats += 1

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        before = beats
        ids = model.encode("hello world " * 40_000)
        during = beats - before
    finally:
        done.set()
        thread.join()
    assert ids.size > 40_000
    assert during > 10  # with the lock held there is one at most, while the call begins

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

    def beats_while(text: str) -> int:
        before = beats
        ids = model.encode(text)
        during = beats - before
        assert ids.size > len(text) / 12
        return during

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        # With the lock held there is one at most, while a call begins, however long it takes.
        assert any(beats_while("hello world " * (40_000 << doubled)) > 3 for doubled in range(4))
    finally:
        done.set()
        thread.join()

"""Draws what `octavo top` shows while requests run, as an SVG: `python tools/pool_picture.py OUT.svg`.

Owns the little load and the moment of the picture; the drawing is octavo_client's. Invariant: the picture is
of a live pool, at a moment when requests share blocks.
"""

import argparse
import threading
import time
from pathlib import Path

from rich.console import Console

from octavo_client import ChatMessage, Client
from octavo_client.commands.top import Watcher

SYSTEM = (
    "You are the keeper of a lighthouse on a small island. Answer sailors and children alike, in plain "
    "words, with one fact about the sea, the weather or the stars in every answer, and never more than a "
    "few sentences."
)
QUESTIONS = (
    "Why is the sea salty?",
    "What makes the tides?",
    "How far can your light be seen?",
    "Why do stars twinkle?",
    "Where do gulls sleep?",
)
EARLIER = (
    "Once upon a time there was a keeper of a lighthouse who",
    "The tide tables of the island say that",
)
SECONDS_TO_SHARE = 120.0


def ask(server: str, question: str) -> None:
    messages = [ChatMessage("system", SYSTEM), ChatMessage("user", question)]
    with Client(server) as client:
        client.generate(messages=messages, max_tokens=48, temperature=0.0, ignore_eos=True)


def picture(server: str, out: Path) -> None:
    """Asks everything at once and draws the pool when all run and share blocks; ends the tool if never."""
    with Client(server) as client:
        client.wait_ready()
        for text in EARLIER:  # leaves blocks that nobody holds and that can still be found
            client.generate(text, max_tokens=40, temperature=0.0, ignore_eos=True)
    threads = [threading.Thread(target=ask, args=(server, question)) for question in QUESTIONS]
    for thread in threads:
        thread.start()
    console = Console(record=True, width=110, height=32, force_terminal=True)
    with Client(server) as client:
        watcher = Watcher(client)
        end = time.monotonic() + SECONDS_TO_SHARE
        while True:
            stats, _ = watcher.read()
            if stats.shared_blocks and stats.running_requests == len(QUESTIONS):
                break
            if time.monotonic() > end:
                raise SystemExit("the requests never shared a block; is the prefix cache on?")
            time.sleep(0.05)
        time.sleep(1.0)
        console.print(watcher.picture(console))
    console.save_svg(str(out), title="octavo top")
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--server", default="127.0.0.1:7450")
    arguments = parser.parse_args()
    picture(arguments.server, arguments.out)


if __name__ == "__main__":
    main()

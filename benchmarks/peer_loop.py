"""The answering side of a peer that runs in a Python of its own: one JSON line in, one out.

Owns the two pipes; imports nothing beyond the standard library, for it runs where Octavo is not installed.
Invariant: what a library prints goes to stderr, so that stdout holds answers alone.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[list[int]], int], list[int]]
"""(prompts, tokens) -> how many tokens each prompt got."""


def serve(load: Callable[[dict[str, Any]], tuple[str, Generate]]) -> None:
    """Loads what the first argument (JSON) says, tells its name, then answers until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name, generate = load(json.loads(sys.argv[1]))

    def say(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    say({"name": name})
    for line in sys.stdin:
        asked = json.loads(line)
        say({"counts": generate(asked["prompts"], asked["tokens"])})

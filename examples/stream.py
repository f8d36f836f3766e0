"""Streams one completion and prints it as it comes: `python examples/stream.py [PROMPT]`.

Talks to OCTAVO_SERVER, else 127.0.0.1:7450 (`octavo serve`).
"""

import sys

from octavo_client import Accepted, Client, Delta


def main() -> None:
    prompt = " ".join(sys.argv[1:]) or "The capital of France is"
    with Client() as client:
        client.wait_ready()
        for event in client.stream(prompt, max_tokens=32, temperature=0):
            match event:
                case Accepted():
                    print(
                        f"[{event.prompt_tokens} tokens, {event.cached_prompt_tokens} cached] {prompt}",
                        end="",
                    )
                case Delta():
                    print(event.text, end="", flush=True)
                case _:
                    print(f"\n[{event.reason.value}: {event.usage.completion_tokens} tokens]")


if __name__ == "__main__":
    main()

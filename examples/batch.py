"""Runs many requests over one stream: `python examples/batch.py [N]`.

This is how one process gets the full throughput. A request that is refused is an event like any other, and
the rest go on. Talks to OCTAVO_SERVER, else 127.0.0.1:7450 (`octavo serve`).
"""

import sys
import time

from octavo_client import Client, Delta, Finished, GenerateOptions, Request, RequestFailed


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    options = GenerateOptions(temperature=0.8, max_tokens=24)
    requests = (
        Request(prompt=f"Fact number {number}:", options=options, request_id=f"fact-{number}")
        for number in range(count)
    )
    texts: dict[str, str] = {}
    tokens = failed = 0
    with Client() as client:
        client.wait_ready()
        began = time.perf_counter()
        with client.batch(requests, max_in_flight=256) as batch:
            for request_id, event in batch:
                if isinstance(event, Delta):
                    texts[request_id] = texts.get(request_id, "") + event.text
                elif isinstance(event, Finished):
                    tokens += event.usage.completion_tokens
                elif isinstance(event, RequestFailed):
                    failed += 1
                    print(f"{request_id}: {event.error}", file=sys.stderr)
        took = time.perf_counter() - began
    print(texts.get("fact-0", ""))
    print(f"{count - failed} of {count} requests, {tokens} tokens, {tokens / took:.0f} tokens/s")


if __name__ == "__main__":
    main()

"""A client in a process of its own, to be killed: `python -m tests.e2e.client_process ADDRESS TOKENS IDS...`.

Owns one streaming call; knows no scenario. Invariant: it says `{"event": "serving"}` once its first token is
there, so that its killer knows that the request runs.
"""

import asyncio
import json
import sys

from tests.e2e.service import Reply, Service, request


async def main(address: str, max_tokens: int, prompt: list[int]) -> None:
    reply = Reply()
    async with Service(address) as service:
        async for event in service.events(request(prompt, max_tokens)):
            first = not reply.tokens
            reply.take(event)
            if first and reply.tokens:
                print(json.dumps({"event": "serving", "listen": ""}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), [int(word) for word in sys.argv[3:]]))

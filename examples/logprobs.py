"""How sure the model was of each token, and of what else: `python examples/logprobs.py [PROMPT]`.

Talks to OCTAVO_SERVER, else 127.0.0.1:7450 (`octavo serve`).
"""

import math
import sys

from octavo_client import Client, TokenLogprob


def said(token: TokenLogprob) -> str:
    """The token's bytes may be a part of a character."""
    return f"{token.token.decode(errors='replace')!r} {math.exp(token.logprob):6.1%}"


def main() -> None:
    prompt = " ".join(sys.argv[1:]) or "The capital of France is"
    with Client() as client:
        client.wait_ready()
        answer = client.generate(prompt, max_tokens=8, temperature=0, logprobs=3)
    print(prompt)
    for position in answer.choices[0].logprobs:
        assert position.sampled is not None
        print(f"{said(position.sampled):24} of {', '.join(map(said, position.top))}")


if __name__ == "__main__":
    main()

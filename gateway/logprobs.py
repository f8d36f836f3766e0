"""Log-probabilities in OpenAI's two shapes.

Owns the shapes and the spelling of tokens as text; knows no endpoint. Invariant: one entry a token, and the
sampled token is always among them.
"""

from collections.abc import Sequence

from gateway.shapes import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from octavo_client.types import PositionLogprobs
from octavo_client.types import TokenLogprob as Logprob


def for_chat(positions: Sequence[PositionLogprobs]) -> ChatLogprobs:
    """The shape of /v1/chat/completions."""
    content = []
    for position in positions:
        if position.sampled is not None:
            entry = _entry(position.sampled)
            content.append(TokenLogprob(**entry, top_logprobs=[_entry(token) for token in position.top]))
    return ChatLogprobs(content=content)


def for_completion(positions: Sequence[PositionLogprobs], offset: int) -> CompletionLogprobs:
    """The shape of /v1/completions. offset: characters of the tokens before these, in the answer."""
    made = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for position in positions:
        if position.sampled is None:
            continue
        text = text_of(position.sampled)
        made["tokens"].append(text)
        made["token_logprobs"].append(position.sampled.logprob)
        made["top_logprobs"].append(_by_text([*position.top, position.sampled]))
        made["text_offset"].append(offset)
        offset += len(text)
    return made


def text_of(token: Logprob) -> str:
    """A token as text, with U+FFFD where its bytes are a part of a character."""
    return token.token.decode("utf-8", "replace")


def _by_text(tokens: Sequence[Logprob]) -> dict[str, float]:
    """The first of several tokens with the same text stays: the likeliest."""
    found: dict[str, float] = {}
    for token in tokens:
        found.setdefault(text_of(token), token.logprob)
    return found


def _entry(token: Logprob) -> TopLogprob:
    return TopLogprob(token=text_of(token), logprob=token.logprob, bytes=list(token.token))

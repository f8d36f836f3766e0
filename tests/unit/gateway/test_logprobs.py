"""Log-probabilities in OpenAI's shapes, also of tokens that are parts of characters."""

from gateway.logprobs import for_chat, for_completion
from octavo_client.types import PositionLogprobs, TokenLogprob

POSITIONS = [
    PositionLogprobs(
        TokenLogprob(5, -0.5, b" a"), (TokenLogprob(5, -0.5, b" a"), TokenLogprob(6, -1.5, b"b"))
    ),
    PositionLogprobs(
        TokenLogprob(7, -3.0, b"\xf0\x9f"), (TokenLogprob(8, -0.25, b"c"), TokenLogprob(9, -0.5, b"c"))
    ),
    PositionLogprobs(TokenLogprob(7, -9999.0, b"d")),
]


def test_the_shape_of_a_chat() -> None:
    first, second, third = for_chat(POSITIONS)["content"]
    assert first == {
        "token": " a",
        "logprob": -0.5,
        "bytes": [32, 97],
        "top_logprobs": [
            {"token": " a", "logprob": -0.5, "bytes": [32, 97]},
            {"token": "b", "logprob": -1.5, "bytes": [98]},
        ],
    }
    assert second["token"] == "\ufffd"
    assert second["bytes"] == [0xF0, 0x9F]
    assert third["top_logprobs"] == []


def test_the_shape_of_a_completion_with_the_sampled_token_always_among_the_top() -> None:
    assert for_completion(POSITIONS, 10) == {
        "tokens": [" a", "\ufffd", "d"],
        "token_logprobs": [-0.5, -3.0, -9999.0],
        "top_logprobs": [{" a": -0.5, "b": -1.5}, {"c": -0.25, "\ufffd": -3.0}, {"d": -9999.0}],
        "text_offset": [10, 12, 13],
    }

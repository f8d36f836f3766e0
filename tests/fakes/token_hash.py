"""The pure function from what a row read to its next token.

Owns the hash of (position, token) pairs; knows no slot and no plan. Invariant: a digest is a wrapping sum
of one mixed word a pair, so it can be extended token by token and any changed pair changes it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(word: int) -> int:
    """splitmix64's finaliser (Steele, Lea, Flood 2014): u64 to u64, a bijection."""
    word &= _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def pair_words(positions: npt.NDArray[np.int32], tokens: npt.NDArray[np.int32]) -> UInt64Array:
    """One mixed u64 for each pair: arrays [N] and [N] to [N]."""
    high = positions.astype(np.int64).astype(np.uint64) << np.uint64(32)
    words = (high | tokens.astype(np.uint32).astype(np.uint64)) + np.uint64(_GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def pair_word(position: int, token: int) -> int:
    return mix(((position << 32) | (token & 0xFFFFFFFF)) + _GOLDEN)


def digest_of(tokens: Sequence[int] | npt.NDArray[np.int32]) -> int:
    """The digest of tokens at positions 0, 1, ...; also the key of a scripted prompt."""
    ids = np.asarray(tokens, np.int32)
    return int(pair_words(np.arange(len(ids), dtype=np.int32), ids).sum(dtype=np.uint64))


def next_token(digest: int, vocab_size: int, temperature: float, seed: int, output_position: int) -> int:
    """The token after a context with this digest. Seed and position count only above temperature 0."""
    if temperature > 0:
        digest = mix(digest) ^ mix(seed + _GOLDEN) ^ mix(output_position + 0x51)
    return mix(digest + _GOLDEN) % vocab_size


def expected_tokens(
    prompt: Sequence[int] | npt.NDArray[np.int32],
    n: int,
    vocab_size: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[int]:
    """The first n tokens that a right scheduler makes the fakes produce after a prompt."""
    digest, length = digest_of(prompt), len(prompt)
    tokens: list[int] = []
    for output_position in range(n):
        token = next_token(digest, vocab_size, temperature, seed, output_position)
        tokens.append(token)
        digest = (digest + pair_word(length + output_position, token)) & _MASK
    return tokens

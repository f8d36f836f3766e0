"""What each token id adds to the text, as bytes.

Owns the reading of a tokenizer's decoder and the lazily filled tables of bytes per id; does not know
sequences, stop strings or streams. Invariant: for a decoder that `read_rules` accepts, the bytes of a run of
ids joined and decoded as UTF-8 are the tokenizer's own decode of that run (but for malformed byte-fallback
runs, see `detokenizer`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class PieceRules:
    """A decoder in the terms that an incremental decode needs.

    byte_level: tokens spell bytes in GPT-2's alphabet. byte_fallback: `<0xHH>` tokens are single bytes.
    replacements: (from, to) applied to each token. strip_char, strip_count: characters dropped at the start
    of the text. drop_in_first: a character dropped from the first token.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    strip_char: str = " "
    strip_count: int = 0
    drop_in_first: str = ""


def read_rules(decoder: Mapping[str, Any] | None) -> PieceRules | None:
    """The rules of a tokenizer.json "decoder", or None when its text is no plain sum of pieces."""
    if decoder is None:
        return None
    steps: Sequence[Mapping[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return PieceRules(byte_level=True)
    if kinds == ["Metaspace"]:
        mark = steps[0]["replacement"]
        keeps_first = steps[0].get("prepend_scheme") == "never"
        return PieceRules(replacements=((mark, " "),), drop_in_first="" if keeps_first else mark)
    return _sequence_rules(steps)


def _sequence_rules(steps: Sequence[Mapping[str, Any]]) -> PieceRules | None:
    """Sentencepiece's usual chain: any Replace, perhaps ByteFallback, Fuse, perhaps Strip at the start."""
    replacements: list[tuple[str, str]] = []
    byte_fallback = fused = False
    strip_char, strip_count = " ", 0
    for step in steps:
        kind = step["type"]
        if kind == "Replace" and not fused and not byte_fallback and "String" in step["pattern"]:
            replacements.append((step["pattern"]["String"], step["content"]))
        elif kind == "ByteFallback" and not fused:
            byte_fallback = True
        elif kind == "Fuse":
            fused = True
        elif kind == "Strip" and fused and not strip_count and step["stop"] == 0:
            strip_char, strip_count = step["content"], step["start"]
        else:
            return None
    if not fused:
        return None
    return PieceRules(
        byte_fallback=byte_fallback,
        replacements=tuple(replacements),
        strip_char=strip_char,
        strip_count=strip_count,
    )


class PieceTable(dict[int, bytes]):
    """Bytes by token id, filled at the first look; ids that add nothing (unknown, skipped special) hold b"".

    `skipped` are the ids that the decode leaves out. A table is shared by all sequences of a model and holds
    at most one entry an id of the vocabulary, plus none for an id outside it.
    """

    def __init__(self, tokenizer: Tokenizer, rules: PieceRules, skipped: frozenset[int]) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._skipped = skipped
        self.rules = rules

    def __missing__(self, token_id: int) -> bytes:
        token = self._token(token_id)
        if token is None:
            return b""
        piece = self[token_id] = piece_bytes(token, self.rules)
        return piece

    def counts(self, token_id: int) -> bool:
        """Whether the decode sees this id at all."""
        return self._token(token_id) is not None

    def first(self, token_id: int) -> bytes:
        """The bytes of the id as the first token of a text."""
        token = self._token(token_id)
        if token is None:
            return b""
        return piece_bytes(
            token.replace(self.rules.drop_in_first, "") if self.rules.drop_in_first else token, self.rules
        )

    def _token(self, token_id: int) -> str | None:
        if token_id in self._skipped or not 0 <= token_id < 2**32:
            return None
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token


def piece_bytes(token: str, rules: PieceRules) -> bytes:
    """The bytes that a token adds. With a character outside GPT-2's alphabet it stands for itself."""
    if rules.byte_level:
        try:
            return bytes([_BYTE_OF_CHAR[char] for char in token])
        except KeyError:
            return token.encode()
    for old, new in rules.replacements:
        token = token.replace(old, new)
    if rules.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
        return bytes([int(match[1], 16)])
    return token.encode()


def _gpt2_alphabet() -> dict[str, int]:
    """GPT-2's bytes_to_unicode, inverted: printable Latin-1 is itself, the other bytes are 256, 257, ..."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _gpt2_alphabet()

"""Incremental detokenisation: token ids in, whole characters out.

Owns the unfinished bytes (or ids) of one sequence; does not know stop strings or streams. Invariant: what
`push` returned plus what `finish` returns is the decode of all ids pushed, however they were cut into pushes,
at constant cost a token.

`tokenizers.decoders.DecodeStream` is not used (docs/adr/0006): while its text ends in U+FFFD it decodes all
held ids again at each step (4 us a token after 50 broken bytes, over 1,000 us after 5,000), gives such a run
back only when a good character follows, and has no way to flush at the end. Bytes per token through a UTF-8
decoder have none of that, for about 1 us a token.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer

from scheduler_svc.text.pieces import PieceTable

EACH_BYTE = "octavo.replace_each_byte"
_HELD_IDS = 16


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(EACH_BYTE, _replace_each_byte)


class Detokenizer(Protocol):
    """Text of one sequence, piece by piece."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these ids completed; no character of it changes later."""
        ...

    def finish(self) -> str:
        """What is left: U+FFFD for the bytes of an unfinished character, else nothing."""
        ...


class ByteDetokenizer:
    """For byte-level, byte-fallback and plain-piece tokenizers.

    Bytes that are no UTF-8 become U+FFFD as the tokenizer writes them: one for each maximal ill-formed part
    in byte-level BPE (as Rust's from_utf8_lossy), one for each byte with byte fallback. One difference is
    deliberate: in a byte-fallback run that holds good characters and then a broken one, `tokenizers` turns
    the whole run to U+FFFD, which a stream that has shown the good characters cannot; here they stay.
    """

    __slots__ = ("_decode", "_head", "_strip", "_table")

    def __init__(self, table: PieceTable, continues: bool = False) -> None:
        rules = table.rules
        errors = EACH_BYTE if rules.byte_fallback else "replace"
        self._table = table
        self._decode = codecs.getincrementaldecoder("utf-8")(errors).decode
        self._head = bool(rules.drop_in_first) and not continues
        self._strip = 0 if continues else rules.strip_count

    def push(self, token_ids: Sequence[int]) -> str:
        head = b""
        if self._head:
            head, token_ids = self._take_head(token_ids)
        if len(token_ids) == 1:
            data = head + self._table[token_ids[0]]
        else:
            data = head + b"".join(map(self._table.__getitem__, token_ids))
        text = self._decode(data)
        return self._stripped(text) if self._strip and text else text

    def finish(self) -> str:
        text = self._decode(b"", final=True)
        return self._stripped(text) if self._strip and text else text

    def _take_head(self, token_ids: Sequence[int]) -> tuple[bytes, Sequence[int]]:
        for place, token_id in enumerate(token_ids):
            if self._table.counts(token_id):
                self._head = False
                return self._table.first(token_id), token_ids[place + 1 :]
        return b"", ()

    def _stripped(self, text: str) -> str:
        char = self._table.rules.strip_char
        while self._strip and text.startswith(char):
            text = text[1:]
            self._strip -= 1
        if text:
            self._strip = 0
        return text


class WindowDetokenizer:
    """For any other decoder (word pieces, suffixes): the difference of two decodes over a window of ids.

    Ids that add nothing are left out. Text that ends in U+FFFD waits for more ids, for at most 16 of them,
    which bounds the cost of a token.
    """

    __slots__ = ("_pending", "_shown", "_skip_special_tokens", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._shown: list[int] = []
        self._pending: list[int] = []

    def push(self, token_ids: Sequence[int]) -> str:
        out: list[str] = []
        for token_id in token_ids:
            if not self._decoded([token_id]):
                continue
            self._pending.append(token_id)
            text = self._new_text()
            if not text.endswith("\ufffd") or len(self._pending) >= _HELD_IDS:
                out.append(text)
                self._shown, self._pending = self._pending, []
        return "".join(out)

    def finish(self) -> str:
        text = self._new_text() if self._pending else ""
        self._shown, self._pending = self._pending, []
        return text

    def _new_text(self) -> str:
        before = self._decoded(self._shown)
        return self._decoded(self._shown + self._pending)[len(before) :]

    def _decoded(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens)
        return text

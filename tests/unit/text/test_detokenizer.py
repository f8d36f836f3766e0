"""A17: text in a stream is whole characters, and joined it is the decode of all ids."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from tests.fixtures.small_tokenizers import KINDS
from tests.unit.text.conftest import Pair

GetPair = Callable[[str], Pair]
BYTE_KINDS = ["byte_level", "byte_fallback"]
TEXTS = [
    "family 👩‍👩‍👧‍👦, flag 🏳️‍🌈, thumbs 👍🏽",
    "東京の天気は晴れです。你好，世界",
    "  two  spaces, a tab\tand\n\n lines ",
    "naïve café œuvre Grüße 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "\ufeff\u200b\u202e e\u0301 \x00\x07",
    "replacement \ufffd\ufffd itself \ufffd",
]


def stream(pair: Pair, ids: list[int], skip: bool = True) -> list[str]:
    emitter = pair.model.new_emitter((), False, skip)
    return [*(emitter.push([token_id]).text for token_id in ids), emitter.finish()]


@pytest.mark.parametrize("kind", BYTE_KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_a17_a_text_comes_back_whole_with_no_broken_character_on_the_way(
    pair: GetPair, kind: str, text: str
) -> None:
    it = pair(kind)
    ids = it.model.encode(text).tolist()
    pieces = stream(it, ids)
    assert "".join(pieces) == text == it.decoded(ids) == it.model.decode(ids)
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("skip", [True, False])
def test_a17_any_ids_joined_are_the_full_decode(pair: GetPair, kind: str, skip: bool) -> None:
    it = pair(kind)
    ordinary = [i for i in range(it.model.vocab_size) if not str(it.oracle.id_to_token(i)).startswith("<0x")]
    draw = random.Random(kind)
    for _ in range(300):
        ids = draw.choices(ordinary, k=draw.randrange(30))
        assert "".join(stream(it, ids, skip)) == it.decoded(ids, skip) == it.model.decode(ids, skip)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a17_the_text_does_not_depend_on_how_ids_are_grouped(pair: GetPair, kind: str) -> None:
    it = pair(kind)
    draw = random.Random(5)
    for _ in range(100):
        ids = draw.choices(range(it.model.vocab_size), k=40)
        emitter = it.model.new_emitter()
        out, rest = [], ids
        while rest:
            size = draw.randrange(1, 6)
            out.append(emitter.push(rest[:size]).text)
            rest = rest[size:]
        assert "".join([*out, emitter.finish()]) == "".join(stream(it, ids))


@given(data=st.lists(st.integers(0, 255), max_size=24))
@settings(max_examples=300, deadline=None)
def test_a17_any_bytes_in_byte_level_are_the_full_decode(pair: GetPair, data: list[int]) -> None:
    it = pair("byte_level")
    ids = [_byte_ids(it)[byte] for byte in data]
    pieces = stream(it, ids)
    assert "".join(pieces) == it.decoded(ids) == bytes(data).decode("utf-8", "replace")


@pytest.mark.parametrize("kind", BYTE_KINDS)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a17_an_end_inside_a_character_is_flushed_as_the_decode_has_it(
    pair: GetPair, kind: str, cut: int
) -> None:
    it = pair(kind)
    before, character = it.model.encode("The end: ").tolist(), _bytes_of(it, "👧")
    ids = before + character[:cut]
    pieces = stream(it, ids)
    assert "\ufffd" not in "".join(pieces[:-1])
    assert "".join(pieces) == it.decoded(ids)
    assert pieces[-1] == "\ufffd" * (1 if kind == "byte_level" else cut)


def test_a17_a_broken_byte_after_a_good_character_does_not_take_it_back(pair: GetPair) -> None:
    """The one place where the text is better than `tokenizers`' own, which breaks the whole run of bytes."""
    it = pair("byte_fallback")
    ids = _bytes_of(it, "你") + _bytes_of(it, "好")[:2]
    assert "".join(stream(it, ids)) == it.model.decode(ids) == "你\ufffd\ufffd"
    assert it.decoded(ids) == "\ufffd" * 5


def test_a17_skipped_special_tokens_do_not_break_a_character(pair: GetPair) -> None:
    it = pair("byte_fallback")
    first, *others = _bytes_of(it, "你")
    ids = [first, 2, *others]
    assert "".join(stream(it, ids)) == "你" == it.decoded(ids)
    assert "".join(stream(it, ids, False)) == it.decoded(ids, False)


def test_a17_unknown_ids_add_nothing(pair: GetPair) -> None:
    it = pair("byte_level")
    ids = [it.model.vocab_size + 5, *it.model.encode("fox").tolist(), 2**31 - 1]
    assert "".join(stream(it, ids)) == "fox" == it.decoded(ids)


def test_a17_the_first_space_stays_when_the_text_goes_on_from_a_prompt(pair: GetPair) -> None:
    it = pair("byte_fallback")
    ids = it.model.encode("the dog").tolist()
    assert it.model.new_emitter().push(ids).text == "the dog"
    assert it.model.new_emitter(continues=True).push(ids).text == " the dog"


@pytest.mark.parametrize("kind", [*BYTE_KINDS, "word_piece"])
def test_a17_a_run_of_broken_bytes_costs_the_same_for_each_token(pair: GetPair, kind: str) -> None:
    """Counted, not timed: what a detokenizer holds after thousands of tokens bounds the cost of the next."""
    it = pair(kind)
    detokenizer = it.model._detokenizer(True, continues=False)
    token_id = _bytes_of(it, "你")[0] if kind in BYTE_KINDS else 0
    ids = [token_id] * 5000
    pieces = [detokenizer.push([each]) for each in ids]
    assert _held(detokenizer) <= 32
    if kind in BYTE_KINDS:
        assert all(pieces[1:])
        assert "".join(pieces) + detokenizer.finish() == "\ufffd" * 5000


def test_a17_a_window_lets_a_run_of_replacement_characters_go() -> None:
    tokenizer = KINDS["word_piece"]()
    tokenizer.add_tokens(["\ufffd"])
    broken = tokenizer.token_to_id("\ufffd")
    detokenizer = WindowDetokenizer(tokenizer, skip_special_tokens=True)
    pieces = [detokenizer.push([broken]) for _ in range(100)]
    assert "".join(pieces) + detokenizer.finish() == tokenizer.decode([broken] * 100)
    assert max(map(len, pieces)) <= 32


def _held(detokenizer: Detokenizer) -> int:
    """Ids or bytes that a detokenizer keeps for later."""
    if isinstance(detokenizer, WindowDetokenizer):
        return len(detokenizer._shown) + len(detokenizer._pending)
    assert isinstance(detokenizer, ByteDetokenizer)
    return len(detokenizer._decode.__self__.getstate()[0])  # type: ignore[attr-defined]


def _bytes_of(pair: Pair, text: str) -> list[int]:
    return [_byte_ids(pair)[byte] for byte in text.encode()]


def _byte_ids(pair: Pair) -> dict[int, int]:
    """Token id of each single byte."""
    table = pair.model._tables
    assert table is not None
    pieces = {token_id: table[0][token_id] for token_id in range(pair.model.vocab_size)}
    return {piece[0]: token_id for token_id, piece in reversed(pieces.items()) if len(piece) == 1}

"""A16: stop strings, however the text is cut into tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.text.detokenizer import ByteDetokenizer
from scheduler_svc.text.emitter import StopMatch, TextEmitter
from scheduler_svc.text.pieces import PieceRules
from scheduler_svc.text.stops import StopScanner, stop_set

ALPHABET = "aab é👧\ufffd"
TEXT = st.text(ALPHABET, max_size=30)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


class Chunks(dict[int, bytes]):
    """Stands for a PieceTable: token i is the i-th chunk of bytes."""

    rules = PieceRules(byte_level=True)


def emitter_over(
    chunks: list[bytes], stops: tuple[str, ...], include: bool = False, **more: int
) -> TextEmitter:
    return TextEmitter(ByteDetokenizer(Chunks(enumerate(chunks))), stops, include, **more)


def streamed(emitter: TextEmitter, count: int) -> tuple[list[str], StopMatch | None]:
    """Token by token, as the service does, until a stop."""
    out = []
    for token_id in range(count):
        emitted = emitter.push([token_id])
        out.append(emitted.text)
        if emitted.stopped:
            break
    out.append(emitter.finish())
    return out, emitter.stopped


def plain_search(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """The end of the earliest match and its stop string: first complete wins, then the longest."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    return (min(found)[0], min(found)[2]) if found else None


def expected(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    match = plain_search(text, stops)
    if match is None:
        return text, None
    end, stop = match
    return text[: end if include else end - len(stop)], stop


@st.composite
def tokenised(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A text and its bytes cut anywhere, inside characters too."""
    text = draw(TEXT)
    data = text.encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=12)))
    return text, [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(case=tokenised(), stops=STOPS, include=st.booleans())
@settings(max_examples=600, deadline=None)
def test_a16_stream_is_unary_is_plain_search(
    case: tuple[str, list[bytes]], stops: tuple[str, ...], include: bool
) -> None:
    text, chunks = case
    pieces, match = streamed(emitter_over(chunks, stops, include), len(chunks))
    unary = emitter_over(chunks, stops, include)
    once = unary.push(range(len(chunks))).text + unary.finish()
    wanted, stop = expected(text, stops, include)
    assert "".join(pieces) == once == wanted
    assert (match.stop if match else None) == stop
    assert match == unary.stopped
    if match is not None:
        consumed = b"".join(chunks[: match.output_len]).decode(errors="ignore")
        assert plain_search(consumed, stops)
        before = b"".join(chunks[: match.output_len - 1]).decode(errors="ignore")
        assert not plain_search(before, stops)


@given(case=tokenised(), stops=STOPS)
@settings(max_examples=300, deadline=None)
def test_a16_what_is_held_back_could_still_match_and_nothing_more(
    case: tuple[str, list[bytes]], stops: tuple[str, ...]
) -> None:
    _, chunks = case
    emitter, released, whole = emitter_over(chunks, stops), "", b""
    for token_id, chunk in enumerate(chunks):
        emitted = emitter.push([token_id])
        released, whole = released + emitted.text, whole + chunk
        if emitted.stopped:
            return
        text = whole.decode(errors="ignore")
        held = text[len(released) :]
        starts = [len(text) - size for size in range(1, len(text) + 1) if _begins_a_stop(text[-size:], stops)]
        assert held == text[min(starts, default=len(text)) :]


def _begins_a_stop(tail: str, stops: tuple[str, ...]) -> bool:
    return any(stop.startswith(tail) for stop in stops)


@pytest.mark.parametrize(
    ("chunks", "stops", "text", "stop", "output_len"),
    [
        pytest.param(
            ["He", "llo", " ST", "O", "P", " more"], ["STOP"], "Hello ", "STOP", 5, id="over 3 tokens"
        ),
        pytest.param(
            ["a", "b\nUs", "er", ":x", "y"], ["\nUser:"], "ab", "\nUser:", 4, id="ends inside a token"
        ),
        pytest.param(["xEN", "D more END"], ["END"], "x", "END", 2, id="begins and ends inside tokens"),
        pytest.param(["an end", "ing"], ["ending", "end"], "an ", "end", 1, id="one a prefix of the other"),
        pytest.param(["e", "n", "d"], ["nd", "end"], "", "end", 3, id="one a suffix of the other"),
        pytest.param(["xabc", "d"], ["abcd", "bc"], "xa", "bc", 1, id="complete first wins"),
        pytest.param(["aaa", "ab"], ["aab"], "aa", "aab", 2, id="overlapping near-match"),
        pytest.param(["</th", "e>", " x"], ["</think>"], "</the> x", None, None, id="near-match that fails"),
        pytest.param(["x", "</thi"], ["</think>"], "x</thi", None, None, id="end inside a near-match"),
        pytest.param(["one", " stop"], ["stop"], "one ", "stop", 2, id="on the last allowed token"),
        pytest.param(["stop"], ["stop"], "", "stop", 1, id="nothing but a stop"),
    ],
)
def test_a16_cases(
    chunks: list[str], stops: list[str], text: str, stop: str | None, output_len: int | None
) -> None:
    emitter = emitter_over([chunk.encode() for chunk in chunks], tuple(stops))
    pieces, match = streamed(emitter, len(chunks))
    assert "".join(pieces) == text
    assert match == (StopMatch(stop, output_len) if stop and output_len else None)


def test_a16_no_character_of_a_stop_goes_out_and_a_failed_match_is_released_at_once() -> None:
    chunks = [b"ok ", b"<", b"/s", b"x", b"</", b"s>", b"tail"]
    pieces, match = streamed(emitter_over(chunks, ("</s>",)), len(chunks))
    assert pieces == ["ok ", "", "", "</sx", "", "", ""]
    assert match == StopMatch("</s>", 6)


def test_a16_the_stop_is_part_of_the_text_when_asked_for_and_nothing_is_held_for_it() -> None:
    chunks = [b"ok ", b"</", b"s> tail"]
    pieces, match = streamed(emitter_over(chunks, ("</s>",), include=True), len(chunks))
    assert pieces == ["ok ", "</", "s>", ""]
    assert match == StopMatch("</s>", 3)


def test_a16_after_a_match_late_tokens_add_nothing() -> None:
    emitter = emitter_over([b"a", b"stop", b"b"], ("stop",))
    assert emitter.push([0, 1, 2]).text == "a"
    assert emitter.push([2]).text == ""
    assert emitter.finish() == ""
    assert emitter.stopped == StopMatch("stop", 2)


def test_a16_a_stop_is_looked_for_once_min_tokens_are_out() -> None:
    chunks = [b"END", b" EN", b"D", b" END", b" x"]
    pieces, match = streamed(emitter_over(chunks, ("END",), min_tokens=3), len(chunks))
    assert "".join(pieces) == "END END "
    assert match == StopMatch("END", 4)


def test_a16_an_unfinished_character_at_the_end_is_searched_too() -> None:
    emitter = emitter_over([b"x\xe4\xbd"], ("\ufffd",))
    assert emitter.push([0]).text == "x"
    assert emitter.finish() == ""
    assert emitter.stopped == StopMatch("\ufffd", 1)


def test_a16_the_automaton_grows_with_the_stops_alone() -> None:
    """Linear cost: 16 stops of 255 equal characters, the worst case of a search that starts over."""
    stops = tuple("a" * 255 + chr(ord("b") + i) for i in range(16))
    made = stop_set(stops)
    assert len(made.goto) == 1 + 255 + 16
    scanner = StopScanner(stops, include_stop=False)
    assert len("".join(scanner.feed("a" * 50) for _ in range(400))) == 20_000 - 255
    assert scanner.feed("z") == "a" * 255 + "z"

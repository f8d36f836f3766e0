"""Readers: what a real trace becomes, and one line for what is none."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from scheduler_svc.simulate.readers import ReadOptions, load_encoder, read_trace
from scheduler_svc.simulate.trace import TraceError
from tests.unit.simulate.traces import AZURE, MODEL, MOONCAKE, SESSIONS, WEKA, path_of

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
TURN = {"t": 0.5, "in": 130, "out": 3, "hash_ids": [1, 2]}


def test_mooncake() -> None:
    trace = read_trace(MOONCAKE)
    first, last = trace.requests[0], trace.requests[-1]
    assert (trace.format, trace.id_block_size, len(trace.requests)) == ("mooncake", 512, 200)
    assert (first.arrival, first.prompt_len, first.output_len) == (0.0, 6758, 500)
    assert first.block_ids is not None
    assert first.block_ids.tolist() == list(range(14))
    assert last.arrival >= 1.0, "milliseconds became seconds"


def test_azure() -> None:
    trace = read_trace(AZURE)
    assert (trace.format, len(trace.requests)) == ("azure", 500)
    assert (trace.requests[0].prompt_len, trace.requests[0].output_len) == (374, 44)
    assert trace.requests[1].arrival == pytest.approx(4.3145790, abs=1e-6)


def test_weka_sessions_are_namespaces_and_begin_one_after_the_other() -> None:
    trace = read_trace(WEKA, options=ReadOptions(session_interval=7.0))
    names = list(dict.fromkeys(request.namespace for request in trace.requests))
    begins = [next(r.arrival for r in trace.requests if r.namespace == name) for name in names]
    assert (trace.format, trace.id_block_size, len(trace.requests), len(names)) == ("weka", 64, 47, 8)
    assert begins == [7.0 * i for i in range(8)]


def test_sessions_of_text_are_tokenised() -> None:
    trace = read_trace(SESSIONS, options=ReadOptions(limit=20, encode=load_encoder(MODEL)))
    first = trace.requests[0]
    assert (trace.format, len(trace.requests)) == ("sessions", 20)
    assert first.prompt is not None
    assert first.output is not None
    assert (len(first.prompt), len(first.output)) == (first.prompt_len, first.output_len)
    assert first.prompt_len > 5


def test_a_gzip_file_reads_as_the_plain_one(tmp_path: Path) -> None:
    zipped = tmp_path / "trace.gz"
    zipped.write_bytes(gzip.compress(AZURE.read_bytes()))
    assert read_trace(zipped).requests == read_trace(AZURE).requests


def test_limit_takes_the_first_requests() -> None:
    for path in (MOONCAKE, AZURE, WEKA):
        assert len(read_trace(path, options=ReadOptions(limit=9)).requests) == 9


def test_equal_block_ids_give_equal_tokens_and_nothing_else_does() -> None:
    trace = read_trace(MOONCAKE)
    first, second = trace.prompt_of(0), trace.prompt_of(1)  # they share id 0 alone
    assert len(first) == 6758
    assert first.min() >= 0
    assert np.array_equal(first[:512], second[:512])
    assert len(set(first[512:].tolist()) & set(second[512:].tolist())) < 5, "30 bits: hardly any by chance"
    assert len(np.unique(first)) > 6750


def test_what_has_no_id_is_the_request_s_own() -> None:
    trace = read_trace(WEKA)
    number = next(i for i, request in enumerate(trace.requests) if request.prompt_len % 64 > 8)
    request = trace.requests[number]
    rest = trace.prompt_of(number)[request.prompt_len // 64 * 64 :]
    other = read_trace(AZURE).prompt_of(number)
    assert len(rest) == request.prompt_len % 64
    assert not set(rest.tolist()) & set(other.tolist())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_length": -1}, "line 1: input_length -1: must be a whole number in 0..268435456"),
        ({"input_length": True}, "input_length True: must be"),
        ({"output_length": 1.5}, "output_length 1.5: must be"),
        ({"timestamp": "soon"}, "timestamp 'soon': must be a number of at least 0"),
        ({"timestamp": float("nan")}, "timestamp nan: must be"),
        ({"hash_ids": [1]}, "hash_ids 1 ids: must be 2 for 600 tokens"),
        ({"hash_ids": [1, -2]}, "hash_ids [1, -2]: must be a list of whole numbers in 0..2147483646"),
        ({"hash_ids": None}, "hash_ids None: must be"),
    ],
)
def test_a_bad_mooncake_line_is_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = path_of(tmp_path, json.dumps(GOOD | change))
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert said in str(error.value)
    assert str(error.value).startswith(f"{path} line 1: ")


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("", "auto", "no requests: the file is empty"),
        ("\n\n", "mooncake", "no requests: the file is empty"),
        ("what is this", "auto", "no known format: first line 'what is this'"),
        ('{"a": 1}', "auto", "no known format"),
        ("[1]", "mooncake", "a JSON object is needed, not '[1]'"),
        ("{", "mooncake", "line 1: no JSON"),
        ('{"timestamp": 1}', "mooncake", "line 1: input_length is missing"),
        ("a,b\n", "azure", "line 1: columns ['a', 'b'], must be"),
        (HEADER, "azure", "no requests in format azure"),
        (
            f"{HEADER}now,1,1",
            "azure",
            "line 2: TIMESTAMP now: must be a time",
        ),
        (
            f"{HEADER}2023-11-16 18:15:46.68,x,1",
            "azure",
            "line 2: ContextTokens 'x': must be a whole number",
        ),
        (
            f"{HEADER}2023-11-16 18:15:46,1",
            "azure",
            "GeneratedTokens is missing",
        ),
        (
            json.dumps({"id": "a", "block_size": 64, "requests": [TURN | {"hash_ids": [1]}]}),
            "weka",
            "line 1 requests[0]: hash_ids 1 ids: must be 2 for 130 tokens",
        ),
        (json.dumps({"id": "a", "block_size": 0, "requests": []}), "weka", "block_size 0: must be"),
        (json.dumps({"id": "a", "block_size": 64, "requests": 3}), "weka", "requests 3: must be a list"),
        (json.dumps({"session_id": "a", "timestamp": 1}), "auto", "--tokenizer DIR is needed"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str, name: str, said: str) -> None:
    with pytest.raises(TraceError) as error:
        read_trace(path_of(tmp_path, text), name)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_broken_gzip_and_binary_files_are_refused(tmp_path: Path) -> None:
    for data in (gzip.compress(b"x" * 1000)[:20], b"\xff\xfe\x00"):
        path = tmp_path / "trace"
        path.write_bytes(data)
        with pytest.raises(TraceError, match="neither UTF-8 text nor whole gzip"):
            read_trace(path)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"^--tokenizer .*tokenizer\.json"):
        load_encoder(tmp_path)

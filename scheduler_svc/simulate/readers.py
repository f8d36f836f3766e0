"""Reading traces: Mooncake and WEKA JSON lines, Azure CSV, sessions of text, recorded logs.

Owns the formats; does not know what a simulation does with the requests. Invariant: a trace is read whole or
refused with one line that names file, line, field, value and limit.

Sources of the formats: github.com/kvcache-ai/Mooncake (FAST25-release/traces), Azure/AzurePublicDataset
(AzureLLMInferenceTrace), callanjfox/kv-cache-tester (traces), LMCache/lmcache-agent-trace.
"""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from scheduler_svc.core.plan import Int32Array
from scheduler_svc.recorder.format import MAGIC
from scheduler_svc.simulate.fields import Fields
from scheduler_svc.simulate.recorded import read_log
from scheduler_svc.simulate.trace import MAX_TOKENS, Trace, TraceError, TraceRequest

MOONCAKE_BLOCK = 512
AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
MAX_ID = np.iinfo(np.int32).max - 1

Encoder = Callable[[str], Int32Array]
Lines = list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """limit: requests read, 0 for all. session_interval: seconds between the begins of two sessions, in the
    formats that say nothing of it. encode: the tokenizer that the text formats need.
    """

    limit: int = 0
    session_interval: float = 10.0
    encode: Encoder | None = None


def read_trace(path: Path, name: str = "auto", options: ReadOptions | None = None) -> Trace:
    """The trace in a file. Raises TraceError for what is not such a trace, OSError for no file."""
    raw = path.read_bytes()
    options = options or ReadOptions()
    if name == LOG or (name == "auto" and raw.startswith(MAGIC)):
        trace = read_log(path, options.limit)
    else:
        trace = _read_lines(path, raw, name, options)
    if not trace.requests:
        raise TraceError(f"{path}: no requests in format {trace.format}")
    return trace


def _read_lines(path: Path, raw: bytes, name: str, options: ReadOptions) -> Trace:
    lines = _lines(path, raw)
    if not lines:
        raise TraceError(f"{path}: no requests: the file is empty")
    name = _guess(path, lines[0][1]) if name == "auto" else name
    return LINE_FORMATS[name](path, lines, options)


def _lines(path: Path, raw: bytes) -> Lines:
    """(number, text) of every line that is not blank; plain or gzip."""
    try:
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        text = data.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: neither UTF-8 text nor whole gzip: {error}") from error
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _guess(path: Path, first: str) -> str:
    if first.strip().split(",") == AZURE_COLUMNS:
        return "azure"
    try:
        head = json.loads(first)
    except (ValueError, RecursionError):
        head = None
    if isinstance(head, dict):
        for name, key in (("mooncake", "input_length"), ("weka", "requests"), ("sessions", "session_id")):
            if key in head:
                return name
    raise TraceError(f"{path}: no known format: first line {first[:40]!r}; --format is one of {_names()}")


def _names() -> str:
    return ", ".join(FORMATS)


def _objects(path: Path, lines: Lines) -> Iterator[Fields]:
    for number, line in lines:
        where = f"{path} line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{where}: no JSON: {error}") from error
        if not isinstance(value, dict):
            raise TraceError(f"{where}: a JSON object is needed, not {line[:40]!r}")
        yield Fields(where, value)


def _mooncake(path: Path, lines: Lines, options: ReadOptions) -> Trace:
    requests = []
    for fields in _objects(path, _first(lines, options)):
        length = fields.integer("input_length", 0, MAX_TOKENS)
        ids = fields.integers("hash_ids", 0, MAX_ID)
        blocks = -(-length // MOONCAKE_BLOCK)
        if len(ids) != blocks:
            raise fields.error("hash_ids", f"{len(ids)} ids", f"{blocks} for {length} tokens")
        outputs = fields.integer("output_length", 0, MAX_TOKENS)
        arrival = fields.number("timestamp", 0) / 1e3
        requests.append(TraceRequest(arrival, length, outputs, block_ids=ids))
    return Trace(path.name, "mooncake", tuple(requests), MOONCAKE_BLOCK)


def _azure(path: Path, lines: Lines, options: ReadOptions) -> Trace:
    header = lines[0][1].strip().split(",")
    if header != AZURE_COLUMNS:
        raise TraceError(f"{path} line 1: columns {header}, must be {AZURE_COLUMNS}")
    requests: list[TraceRequest] = []
    begin: datetime | None = None
    for number, line in _first(lines[1:], options):
        row = next(csv.reader([line.strip()]))
        fields = Fields(f"{path} line {number}", dict(zip(AZURE_COLUMNS, row, strict=False)))
        moment = _azure_time(fields)
        begin = begin or moment
        prompt, output = (fields.integer_text(name, 0, MAX_TOKENS) for name in AZURE_COLUMNS[1:])
        requests.append(TraceRequest((moment - begin).total_seconds(), prompt, output))
    return Trace(path.name, "azure", tuple(requests))


def _azure_time(fields: Fields) -> datetime:
    text = fields.text("TIMESTAMP")
    try:  # seven digits of a second, one more than datetime takes
        whole, _, fraction = text.partition(".")
        return datetime.fromisoformat(f"{whole}.{(fraction + '000000')[:6]}").replace(tzinfo=None)
    except ValueError:
        raise fields.error("TIMESTAMP", text, "a time as 2023-11-16 18:15:46.6805900") from None


def _weka(path: Path, lines: Lines, options: ReadOptions) -> Trace:
    requests: list[TraceRequest] = []
    block_size = 0
    for session, fields in enumerate(_objects(path, lines)):
        size = fields.integer("block_size", 1, MAX_TOKENS)
        if block_size not in (0, size):
            raise fields.error("block_size", size, f"{block_size}, that of the first session")
        block_size = size
        namespace = fields.text("id")
        start = session * options.session_interval
        for turn in fields.objects("requests"):
            if options.limit and len(requests) == options.limit:
                break
            length, ids = turn.integer("in", 0, MAX_TOKENS), turn.integers("hash_ids", 0, MAX_ID)
            if len(ids) != length // size:
                raise turn.error("hash_ids", f"{len(ids)} ids", f"{length // size} for {length} tokens")
            output = turn.integer("out", 0, MAX_TOKENS)
            requests.append(TraceRequest(start + turn.number("t", 0), length, output, namespace, ids))
    return Trace(path.name, "weka", tuple(requests), block_size)


def _sessions(path: Path, lines: Lines, options: ReadOptions) -> Trace:
    if options.encode is None:
        raise TraceError(f"{path}: format sessions is text: --tokenizer DIR is needed to count its tokens")
    requests, begins = [], dict[str, tuple[float, float]]()
    for fields in _objects(path, _first(lines, options)):
        session, moment = fields.text("session_id"), fields.number("timestamp", 0) / 1e6
        begin, start = begins.setdefault(session, (moment, len(begins) * options.session_interval))
        prompt, output = (options.encode(fields.text(name)) for name in ("input", "output"))
        arrival = start + max(0.0, moment - begin)
        requests.append(TraceRequest(arrival, len(prompt), len(output), prompt=prompt, output=output))
    return Trace(path.name, "sessions", tuple(requests))


def _first(lines: Lines, options: ReadOptions) -> Lines:
    return lines[: options.limit] if options.limit else lines


LINE_FORMATS: dict[str, Callable[[Path, Lines, ReadOptions], Trace]] = {
    "mooncake": _mooncake,
    "azure": _azure,
    "weka": _weka,
    "sessions": _sessions,
}
LOG = "log"
FORMATS = (*LINE_FORMATS, LOG)
"""The names that --format takes."""


def load_encoder(folder: Path) -> Encoder:
    """The tokenizer of a model folder. Raises TraceError where there is none."""
    from octavo.errors import FailedPrecondition  # only for text: the other formats need no tokenizer
    from scheduler_svc.text.model import load_text_model

    try:
        model = load_text_model(folder)
    except FailedPrecondition as error:
        raise TraceError(f"--tokenizer {folder}: {error.message}") from error
    return lambda text: model.encode(text, add_special_tokens=False)

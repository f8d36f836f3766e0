"""`octavo generate`: texts or JSON lines in, JSON lines out, over one GenerateBatch stream.

Owns files, progress and the exit code; the shape of a line is jsonl's. Invariant: every line of the input
has exactly one line of output a sequence, or one with an error; text that came is in one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import sys
import threading
import uuid
from collections.abc import Iterator
from typing import Literal, TextIO

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from octavo.command_line import whole
from octavo_client import jsonl
from octavo_client.calls import Batch
from octavo_client.client import Client
from octavo_client.commands.options import add_sampling, add_server, number_of, sampling_options
from octavo_client.console import stderr_console
from octavo_client.errors import AlreadyExists, BadArgument, Cancelled, OctavoError
from octavo_client.types import BatchEvent, Delta, Finished, GenerateOptions, Request, RequestFailed

_RATE_SECONDS = 0.25
_KEEP = "surrogateescape"
"""What is no UTF-8 is kept, so that its line alone is refused."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="*", help="prompts; without any, JSON lines are read")
    parser.add_argument(
        "-i", "--input", default="-", metavar="FILE", help="JSON lines; - is stdin (%(default)s)"
    )
    parser.add_argument(
        "-o", "--output", default="-", metavar="FILE", help="JSON lines; - is stdout (%(default)s)"
    )
    parser.add_argument(
        "--concurrency", type=whole(1), default=256, metavar="N", help="requests in flight (%(default)s)"
    )
    parser.add_argument("--n", type=number_of("n"), metavar="N", help="sequences of each prompt (1)")
    parser.add_argument(
        "--logprobs",
        type=number_of("logprobs"),
        metavar="K",
        help="add the tokens' log-probabilities and the K likeliest",
    )
    parser.add_argument("--token-ids", action="store_true", help="add the token ids to each answer")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar on stderr")
    add_sampling(parser)
    add_server(parser)
    parser.epilog = (
        'A line is a JSON string, or an object with one of "prompt", "messages" and "token_ids", perhaps '
        '"request_id", and any sampling option by its name, as in {"prompt": "Once", "max_tokens": 8}. '
        'What the answer must match: "json_schema" (an object, or its text), "regex" or "ebnf" (GBNF or '
        'Lark); or as over HTTP "response_format" ({"type": "json_object"} or {"type": "json_schema", '
        '"json_schema": {"schema": {...}}}) or "structured_outputs" ({"json": {...}}, {"regex": ...} or '
        '{"grammar": ...}). '
        "Answers come in the order they end; `line` is the input's number. Exit code 1 when any line failed."
    )


def run(arguments: argparse.Namespace) -> int:
    if not arguments.text and arguments.input == "-" and sys.stdin.isatty():
        raise BadArgument("give a text, --input FILE, or JSON lines on stdin", field="text")
    with contextlib.ExitStack() as stack:
        lines, total = _lines(arguments, stack)
        output = sys.stdout
        if arguments.output != "-":
            output = stack.enter_context(_opened("--output", arguments.output, "w"))
        client = stack.enter_context(Client(arguments.server))
        defaults = dataclasses.replace(
            sampling_options(arguments), n=arguments.n, logprobs=arguments.logprobs
        )
        job = Job(defaults, output, arguments.token_ids, total, not arguments.no_progress)
        stack.enter_context(job.progress)
        job.run(client, lines, arguments.concurrency)
    return 1 if job.failed else 0


def _lines(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> tuple[Iterator[str], int | None]:
    """The input lines and, where it is known beforehand, their number."""
    if arguments.text:
        return iter([json.dumps(text) for text in arguments.text]), len(arguments.text)
    if arguments.input == "-":
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors=_KEEP)
        return iter(sys.stdin), None
    source = stack.enter_context(_opened("--input", arguments.input, "r"))
    total = sum(1 for line in source if line.strip())
    source.seek(0)
    return iter(source), total


def _opened(flag: str, path: str, mode: Literal["r", "w"]) -> TextIO:
    try:
        return open(path, mode, encoding="utf-8", errors=_KEEP if mode == "r" else None)
    except OSError as error:
        raise BadArgument(f"{flag} {path}: {error.strerror}", field=flag.removeprefix("--")) from None


class Job:
    """One run: what is open, came, or failed. Lines are read on gRPC's thread, answers on the main one."""

    def __init__(
        self, defaults: GenerateOptions, output: TextIO, token_ids: bool, total: int | None, show: bool
    ) -> None:
        self._defaults = defaults
        self._output = output
        self._token_ids = token_ids
        self._run_id = uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        self._answers: dict[str, jsonl.Answer] = {}
        self._open_sequences: dict[str, int] = {}
        self._tokens = 0
        self._next_rate = 0.0
        self.failed = 0
        console = stderr_console()
        self.progress = Progress(
            SpinnerColumn(),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rate]}"),
            console=console,
            disable=not show or not console.is_terminal,
        )
        self._task = self.progress.add_task("", total=total, rate="")

    def run(self, client: Client, lines: Iterator[str], concurrency: int) -> None:
        """Reads, sends and writes everything. Raises OctavoError when the stream itself fails."""
        batch = client.batch(self._requests(lines), max_in_flight=concurrency)
        try:
            for request_id, event in batch:
                self._take(request_id, event)
        except OctavoError as error:
            self._abandon(batch, error)
            raise
        except KeyboardInterrupt:
            self._abandon(batch, Cancelled("interrupted before its end"))
            raise
        finally:
            batch.cancel()

    def _requests(self, lines: Iterator[str]) -> Iterator[Request]:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            request_id = f"{self._run_id}-{number}"
            try:
                request = jsonl.parse_request(line, self._defaults, request_id)
                self._enter(request, number)
            except OctavoError as error:
                self._write_failed(jsonl.Answer(number), request_id, error)
                continue
            yield request

    def _enter(self, request: Request, number: int) -> None:
        with self._lock:
            if request.request_id in self._answers:
                raise AlreadyExists(f"request_id {request.request_id!r} is still running", field="request_id")
            self._answers[request.request_id] = jsonl.Answer(number)
            self._open_sequences[request.request_id] = request.options.n or 1

    def _take(self, request_id: str, event: BatchEvent) -> None:
        answer = self._answers.get(request_id)
        if answer is None:
            return
        if isinstance(event, Delta):
            answer.add(event)
            self._tokens += len(event.token_ids)
            self._show_rate()
        elif isinstance(event, Finished):
            self._write(answer.finished(request_id, event, self._token_ids))
            self._open_sequences[request_id] -= 1
            if self._open_sequences[request_id] <= 0:
                self._close(request_id)
        elif isinstance(event, RequestFailed):
            self._close(request_id)
            self._write_failed(answer, request_id, event.error)

    def _close(self, request_id: str) -> None:
        with self._lock:
            del self._answers[request_id], self._open_sequences[request_id]
        self.progress.advance(self._task)

    def _abandon(self, batch: Batch, error: OctavoError) -> None:
        """The stream broke: what was sent and has not ended failed with it."""
        batch.cancel()
        with self._lock:
            left = list(self._answers.items())
            self._answers.clear()
        for request_id, answer in left:
            self._write_failed(answer, request_id, error)

    def _write_failed(self, answer: jsonl.Answer, request_id: str, error: OctavoError) -> None:
        """What had come of a request is written with what broke or refused it."""
        self.failed += 1
        for line in answer.failed(request_id, error, self._token_ids):
            self._write(line)

    def _write(self, value: dict[str, object]) -> None:
        text = json.dumps(value, ensure_ascii=False)
        with self._lock:
            self._output.write(text + "\n")
            self._output.flush()

    def _show_rate(self) -> None:
        """Brings tokens per second up to date, a few times a second."""
        elapsed = self.progress.tasks[self._task].elapsed or 0.0
        if elapsed >= self._next_rate:
            self._next_rate = elapsed + _RATE_SECONDS
            self.progress.update(self._task, rate=f"{self._tokens / max(elapsed, 0.1):,.0f} tokens/s")

"""`octavo simulate` on a terminal: progress, table, files.

Owns the exit status and what is written where; works out no figure. Invariant: a failure is one line on
stderr, and nothing but the table goes to stdout.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from scheduler_svc.simulate import plots, runs, table
from scheduler_svc.simulate.arguments import Arguments, parse
from scheduler_svc.simulate.trace import Trace, TraceError

PIPE_WIDTH = 200
"""Columns of a table that no terminal bounds."""


def main(words: Sequence[str]) -> int:
    """Exit status: 0 done, 1 a trace or file that cannot be used, 2 a wrong command line."""
    arguments = parse(words)
    try:
        _run(arguments)
    except TraceError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _run(arguments: Arguments) -> None:
    if arguments.plots is not None:
        plots.require_library()  # before the work, not after it
    trace, worker = runs.load(arguments)
    with _progress(arguments, trace) as progress:
        report = runs.run_all(arguments, trace, worker, progress)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report) + "\n", encoding="utf-8")
    if arguments.plots is not None:
        plots.draw(report, arguments.plots)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table.table_of(report))


@contextmanager
def _progress(arguments: Arguments, trace: Trace) -> Iterator[runs.Progress]:
    """A bar over the requests of all runs, on stderr; in a pipe it shows nothing."""
    columns = (
        TextColumn("block {task.fields[label]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        count = len(trace.requests)
        task = bar.add_task("", total=count * len(arguments.block_sizes), label="")
        done: dict[str, int] = {}

        def advance(label: str, ended: int) -> None:
            done[label] = ended
            bar.update(task, completed=sum(done.values()), label=label)

        yield advance


def _fail(message: str) -> int:
    print(f"octavo simulate: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    return 1

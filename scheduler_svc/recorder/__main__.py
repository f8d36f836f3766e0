"""`octavo replay FILE`: makes a log's decisions again, and says the first difference or none.

Owns the command line, what is printed and the exit status; knows no decision. Invariant: status 0 means that
every plan came out as recorded, and that every token compared was the same.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from octavo.command_line import Parser, address, real
from scheduler_svc.recorder.format import DamagedLog, LogReader, Record
from scheduler_svc.recorder.replay import Difference, Replayer
from scheduler_svc.recorder.values import UnknownField
from scheduler_svc.recorder.worker_replay import CannotReplay, Comparison, WorkerReplay
from scheduler_svc.worker_client import LinkSettings

SAME, DIFFERENT, UNREADABLE = 0, 1, 3


def main() -> int:
    """Exit status: 0 no difference, 1 a difference or a worker that fails, 2 a wrong command line, 3 a log
    that cannot be read.
    """
    arguments = _arguments()
    try:
        with arguments.file.open("rb") as file:
            return _replay(arguments, LogReader(file))
    except (DamagedLog, UnknownField) as error:
        return _fail(f"{arguments.file}: {error}", UNREADABLE)
    except OSError as error:
        return _fail(f"{arguments.file}: {error.strerror}", UNREADABLE)
    except CannotReplay as error:
        return _fail(str(error), DIFFERENT)
    except KeyboardInterrupt:
        return 130


def _arguments() -> argparse.Namespace:
    parser = Parser(
        prog="octavo replay",
        description="Makes the decisions of a recorded log again and says the first that differs.",
        epilog="Exit status: 0 none differs, 1 one does, 2 wrong command line, 3 the log cannot be read.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a log of `octavo scheduler --record FILE`")
    parser.add_argument(
        "--worker",
        type=address,
        metavar="ADDR",
        help="runs the plans on this worker too, and compares tokens; takes it over",
    )
    parser.add_argument(
        "--step-timeout-seconds", type=real(0, above=True), default=120.0, metavar="S", help="(%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser.parse_args()


def _replay(arguments: argparse.Namespace, reader: LogReader) -> int:
    replayer = Replayer(reader.header, reader.rebuilder)
    comparison: Comparison | None = None
    if arguments.worker is None:
        difference = next(_differences(replayer, reader), None)
    else:
        config = reader.header.config
        link = LinkSettings(
            address=arguments.worker,
            step_seconds=arguments.step_timeout_seconds,
            max_batch_tokens=config.max_num_batched_tokens,
            max_batch_seqs=config.max_num_seqs,
        )
        difference, comparison = asyncio.run(_on_worker(replayer, link, reader))
    (_print_json if arguments.json else _print)(replayer, reader, difference, comparison)
    return DIFFERENT if difference is not None or (comparison is not None and comparison.other) else SAME


def _differences(replayer: Replayer, records: LogReader) -> Iterator[Difference]:
    for record in records:
        difference = replayer.feed(record)
        if difference is not None:
            yield difference


async def _on_worker(
    replayer: Replayer, link: LinkSettings, records: "LogReader | list[Record]"
) -> tuple[Difference | None, Comparison]:
    replay = WorkerReplay(replayer, link)
    return await replay.play(records), replay.comparison


def _print(
    replayer: Replayer, reader: LogReader, difference: Difference | None, comparison: Comparison | None
) -> None:
    tally = replayer.tally
    print(
        f"{tally.records} records: {tally.requests} requests, {tally.steps} steps, {tally.tokens} tokens, "
        f"{tally.sessions} sessions with a worker"
    )
    if reader.torn:
        print(f"the log was cut off: {reader.torn}; what is before it was replayed")
    elif not tally.ended and difference is None:
        print("the log was not closed in order; its records are whole")
    if comparison is not None:
        model = (
            "" if comparison.same_model else "; the worker has another model, so greedy tokens alone count"
        )
        print(
            f"tokens on the worker: {comparison.equal} equal, {comparison.other} other, "
            f"{comparison.left_out} not compared{model}"
        )
        if comparison.first is not None:
            print(f"first other token: {comparison.first}")
    print(f"first difference: {difference}" if difference is not None else "every plan is as recorded")


def _print_json(
    replayer: Replayer, reader: LogReader, difference: Difference | None, comparison: Comparison | None
) -> None:
    report = {
        **asdict(replayer.tally),
        "torn": reader.torn,
        "difference": asdict(difference) if difference is not None else None,
        "worker": asdict(comparison) if comparison is not None else None,
    }
    print(json.dumps(report))


def _fail(text: str, status: int) -> int:
    print(f"octavo replay: {' '.join(text.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

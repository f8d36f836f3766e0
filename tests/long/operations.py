"""A million random operations: `python -m tests.long.operations [--operations N] [--processes P] [--seed S]`.

Owns the division into pieces and processes, and the account; knows no operation. Invariant: every piece's
seed is printed before it runs, and a piece can be run alone by `--piece K`; the exit status is 1 if any
failed.
"""

import argparse
import json
import multiprocessing
import os
import secrets
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.fakes.simulated_kv import ProtocolViolation
from tests.long.campaign import run_campaign

PIECE = 10_000
CAMPAIGN = 1000
"""Operations of a piece and of a campaign in it."""

BROKEN = (AssertionError, ProtocolViolation, LookupError, TypeError, ValueError, ArithmeticError)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", default=secrets.token_hex(4), help="of the whole run (default: drawn)")
    parser.add_argument("--piece", type=int, help="this piece alone, in this process")
    arguments = parser.parse_args()
    pieces = -(-arguments.operations // PIECE)
    print(f"seed {arguments.seed}: {pieces} pieces of {PIECE} operations, {arguments.processes} processes")
    if arguments.piece is not None:
        tally, failures = run_piece(arguments.seed, arguments.piece)
        print(*failures, json.dumps(tally), sep="\n")
        return 1 if failures else 0
    return run_all(arguments.seed, pieces, arguments.processes)


def run_piece(seed: str, piece: int) -> tuple[Counter[str], list[str]]:
    """The tally of a piece's campaigns, and for each that failed how to run it again and what happened."""
    tally, failures = Counter[str](), []
    for number in range(PIECE // CAMPAIGN):
        name = f"{seed}-{piece}-{number}"
        try:
            tally.update(run_campaign(name, CAMPAIGN))
        except BROKEN:
            failures.append(f"FAILED: run_campaign({name!r}, {CAMPAIGN})\n{traceback.format_exc(limit=-4)}")
    return tally, failures


def run_all(seed: str, pieces: int, processes: int) -> int:
    start, total, failed = time.monotonic(), Counter[str](), 0
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run_piece, seed, piece): piece for piece in range(pieces)}
        for done in as_completed(running):
            tally, failures = done.result()
            total.update(tally)
            failed += len(failures)
            print(*failures, sep="\n", end="", flush=True)
            seconds = time.monotonic() - start
            print(
                f"piece {running[done]}: {total['operations']} operations, {failed} campaigns failed, "
                f"{seconds:.0f} s, {total['operations'] / seconds:.0f} a second",
                flush=True,
            )
    print(
        json.dumps({"seed": seed, "failed": failed, "seconds": round(time.monotonic() - start, 1), **total})
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

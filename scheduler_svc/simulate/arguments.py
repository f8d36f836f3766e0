"""The command line of `octavo simulate`.

Owns flags, defaults and bounds; knows no trace and runs nothing. Invariant: what it returns is within its
bounds, and what is not ends the program with status 2 and one line that names flag, value and limit.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.command_line import Parser, real, whole, wrong
from scheduler_svc.simulate.readers import FORMATS
from scheduler_svc.simulate.worker_model import PRESETS

CONTIGUOUS = "contiguous"
UNBOUNDED = "unbounded"
MAX_BLOCK_SIZE = 4096
MAX_SLOTS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Arguments:
    """A checked command line. block_sizes: tokens, 0 for the contiguous baseline. num_blocks, pool_tokens: at
    most one is set; neither is an unbounded pool. max_model_len 0: the longest request of the trace.
    """

    trace: Path
    format: str
    limit: int
    session_interval: float
    tokenizer: Path | None
    block_sizes: tuple[int, ...]
    num_blocks: int | None
    pool_tokens: int | None
    max_model_len: int
    arrival_scale: float
    one_at_a_time: bool
    block_ids: bool
    priority: str
    queue_timeout: float
    max_num_seqs: int
    max_num_batched_tokens: int
    max_prefill_chunk: int
    watermark_blocks: int
    depth: int
    prefix_cache: bool
    match_inside_blocks: bool
    n: int
    preemption: str
    swap_tokens: int
    worker_model: str
    json: Path | None
    plots: Path | None


def parse(words: Sequence[str]) -> Arguments:
    """Exits with status 2 and one line for a bad command line; 0 after --help."""
    parser = _parser()
    given = vars(parser.parse_args(words))
    given["num_blocks"] = None if given["num_blocks"] == UNBOUNDED else given["num_blocks"]
    if given["block_sizes"] is None:
        given["block_sizes"] = (1,) if given["block_ids"] else (16,)
    arguments = Arguments(**given)
    _no_contradiction(parser, arguments)
    return arguments


def _no_contradiction(parser: argparse.ArgumentParser, given: Arguments) -> None:
    if given.num_blocks is not None and given.pool_tokens is not None:
        parser.error("--num-blocks and --pool-tokens: one of them, not both")
    if given.num_blocks is not None and 0 in given.block_sizes:
        parser.error("--block-size contiguous: needs --pool-tokens or an unbounded pool, not --num-blocks")
    if given.block_ids and given.block_sizes != (1,):
        parser.error("--block-ids: a block is one id of the trace, --block-size cannot be given")
    if given.block_ids and given.n > 1:
        parser.error(f"--n {given.n}: has no meaning with --block-ids")
    if given.n > given.max_num_seqs:
        parser.error(f"--n {given.n}: must be at most --max-num-seqs {given.max_num_seqs}")
    if given.preemption == "swap" and not given.swap_tokens:
        parser.error("--preemption swap: needs --swap-tokens, the size of the host tier")
    if 0 < given.swap_tokens < max(given.block_sizes):
        size = max(given.block_sizes)
        parser.error(f"--swap-tokens {given.swap_tokens}: less than a block of {size} tokens")
    if given.one_at_a_time and given.arrival_scale != 1.0:
        parser.error(f"--arrival-scale {given.arrival_scale:g}: has no meaning with --one-at-a-time")
    if given.max_prefill_chunk > given.max_num_batched_tokens:
        parser.error(
            f"--max-prefill-chunk {given.max_prefill_chunk}: must be at most --max-num-batched-tokens "
            f"{given.max_num_batched_tokens}"
        )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="octavo simulate",
        description="Run a trace through the scheduler's core with a modelled worker on a virtual clock.",
        epilog="docs/simulate.md describes the formats, the worker models and every figure.",
    )
    _trace_flags(parser)
    _pool_flags(parser)
    _policy_flags(parser)
    parser.add_argument(
        "--worker-model", default="h200-qwen3-0.6b", metavar="NAME|FILE",
        help=f"{', '.join(PRESETS)}, or a JSON file (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw SVG files there (octavo[plots])")
    return parser


def _trace_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("trace")
    group.add_argument("trace", type=Path, metavar="TRACE", help="file, plain or gzip")
    group.add_argument(
        "--format", choices=("auto", *FORMATS), default="auto", help="kind of trace (%(default)s)"
    )
    group.add_argument(
        "--limit", type=whole(0, 1 << 30), default=0, metavar="N", help="only the first N requests"
    )
    group.add_argument(
        "--arrival-scale", type=real(0, above=True), default=1.0, metavar="X",
        help="X times the trace's requests a second (1)",
    )  # fmt: skip
    group.add_argument(
        "--n", type=whole(1, 1 << 10), default=1, metavar="N", help="answers to each request (1)"
    )
    group.add_argument(
        "--one-at-a-time", action="store_true", help="a request arrives when the one before has ended"
    )
    group.add_argument(
        "--block-ids", action="store_true",
        help="hit rate of the trace's own blocks: one block an id, in file order, nothing generated",
    )  # fmt: skip
    group.add_argument(
        "--session-interval", type=real(0), default=10.0, metavar="S",
        help="seconds between the begins of two sessions, where the trace does not say (10)",
    )  # fmt: skip
    group.add_argument("--tokenizer", type=Path, metavar="DIR", help="model folder, for traces of text")


def _pool_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("pool")
    group.add_argument(
        "--block-size", dest="block_sizes", type=_block_sizes, metavar="N,N,...",
        help="one run for each; `contiguous` reserves --max-model-len for every request (16)",
    )  # fmt: skip
    group.add_argument(
        "--num-blocks", type=whole(1, MAX_SLOTS, UNBOUNDED), default=UNBOUNDED, metavar="N",
        help="blocks of the pool, or `unbounded` (unbounded)",
    )  # fmt: skip
    group.add_argument(
        "--pool-tokens", type=whole(1, MAX_SLOTS), metavar="N", help="size of the pool in tokens instead"
    )
    group.add_argument(
        "--max-model-len", type=whole(0, MAX_SLOTS), default=0, metavar="N",
        help="most tokens of prompt and output (0: the longest of the trace)",
    )  # fmt: skip


def _policy_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("policies")
    group.add_argument("--no-prefix-cache", dest="prefix_cache", action="store_false")
    group.add_argument(
        "--no-match-inside-blocks", dest="match_inside_blocks", action="store_false",
        help="the prefix cache gives whole blocks only",
    )  # fmt: skip
    group.add_argument(
        "--priority", choices=("arrival", "shortest-first"), default="arrival",
        help="who goes first: the oldest, or the shorter prompt by powers of two (%(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--preemption", choices=("auto", "recompute", "swap"), default="auto",
        help="what a sequence without blocks does: the cheaper, or always that (%(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--swap-tokens", type=whole(0, MAX_SLOTS), default=0, metavar="N",
        help="tokens that the host tier holds; 0: nothing is swapped",
    )  # fmt: skip
    group.add_argument(
        "--queue-timeout", type=real(0), default=0.0, metavar="S",
        help="a request that has waited so long for its first step goes away (0: never)",
    )  # fmt: skip
    for flag, low, default, text in (
        ("--max-num-seqs", 1, 256, "sequences of a step"),
        ("--max-num-batched-tokens", 2, 2048, "new tokens of a step"),
        ("--max-prefill-chunk", 0, 0, "new tokens of one sequence in a step, 0: no bound of its own"),
        ("--watermark-blocks", 0, 1, "blocks that an admission leaves free"),
    ):
        group.add_argument(
            flag, type=whole(low, 1 << 20), default=default, metavar="N", help=f"{text} (%(default)s)"
        )
    group.add_argument("--depth", type=whole(1, 2), default=2, metavar="N", help="steps in flight (2)")


def _block_sizes(text: str) -> tuple[int, ...]:
    sizes = []
    for word in text.split(","):
        if word.strip() == CONTIGUOUS:
            sizes.append(0)
        elif word.strip().isascii() and word.strip().isdigit() and 1 <= int(word) <= MAX_BLOCK_SIZE:
            sizes.append(int(word))
        else:
            limit = f"whole numbers from 1 to {MAX_BLOCK_SIZE} or {CONTIGUOUS}, with commas between"
            raise argparse.ArgumentTypeError(wrong(text, limit))
    return tuple(sizes)

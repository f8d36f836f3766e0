"""Octavo on a CPU beside transformers: output tokens per second at 1, 8 and 32 streams, and prefill.

Owns the interleaving and the ratios; knows no peer's inside. Invariant: peers take turns in every round, so
that a ratio compares neighbours in time on a shared machine; medians count. Last line: one JSON object.
"""

import argparse
import contextlib
import functools
import json
import platform
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.peers_cpu import Octavo, Peer, Transformers, TransformersContinuous

_EVERY_CASE = ("octavo", "transformers", "continuous")


def prompts_of(count: int, length: int, seed: int) -> list[list[int]]:
    """Random token ids, others for every seed, so that no cache helps anyone."""
    return np.random.default_rng(seed).integers(1000, 40000, (count, length)).tolist()  # type: ignore[no-any-return]


class Speed(NamedTuple):
    """Output tokens (prompt tokens where one token is asked for) per second and per second of CPU time."""

    second: float
    cpu_second: float


Results = dict[tuple[str, str], list[Speed]]


def measure(peer: Peer, streams: int, prompt: int, output: int, seed: int) -> Speed:
    """The speed of one call for all streams, prefill counted."""
    prompts = prompts_of(streams, prompt, seed)
    started, used = time.perf_counter(), peer.cpu_seconds()
    peer.generate(prompts, output)
    seconds, cpu_seconds = time.perf_counter() - started, peer.cpu_seconds() - used
    tokens = streams * (prompt if output == 1 else output)
    return Speed(tokens / seconds, tokens / cpu_seconds)


def run(arguments: argparse.Namespace, console: Console) -> Results:
    """Starts every peer, lets them take turns, and stops what was started."""
    model = arguments.model
    makers: dict[str, Callable[[], Peer]] = {"octavo": lambda: Octavo("octavo", model)}
    for quantize in arguments.quantize:
        makers[f"octavo_{quantize}"] = functools.partial(
            Octavo, f"octavo --quantize {quantize}", model, "--quantize", quantize
        )
    makers["transformers"] = lambda: Transformers(model, torch.bfloat16)
    if arguments.float32:
        makers["transformers_float32"] = lambda: Transformers(model, torch.float32)
    if arguments.continuous:
        makers["continuous"] = lambda: TransformersContinuous(model, torch.bfloat16)
    with contextlib.ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for name, make in makers.items():
            peers[name] = make()
            stack.callback(peers[name].close)
        return rounds(peers, arguments, console)


def rounds(peers: dict[str, Peer], arguments: argparse.Namespace, console: Console) -> Results:
    """Tokens per second by (peer, case), one for each round; in the first, peers choose their threads."""
    cases = {"c1": (1, 128, arguments.output), "c8": (8, 128, arguments.output)}
    cases |= {"c32": (32, 128, arguments.output), "prefill": (1, 1024, 1)}
    results: Results = defaultdict(list)
    for peer in peers.values():
        peer.choose_threads(lambda peer=peer: measure(peer, 1, 64, 8, seed=0).second)  # type: ignore[misc]
    for number in range(1, arguments.rounds + 1):
        for case, (streams, prompt, output) in cases.items():
            for name, peer in peers.items():
                if name in _EVERY_CASE or case in ("c1", "prefill"):
                    speed = measure(peer, streams, prompt, output, number)
                    results[name, case].append(speed)
                    console.print(
                        f"round {number} {case:8s} {peer.name}: {speed.second:,.1f} tok/s, "
                        f"{speed.cpu_second:,.1f} a CPU second",
                        highlight=False,
                    )
    return results


def report(results: Results, arguments: argparse.Namespace, console: Console) -> dict[str, float]:
    """A table of medians; returns what the last line holds. A ratio is the median of the rounds' ratios."""
    names = list(dict.fromkeys(name for name, _ in results))
    cases = list(dict.fromkeys(case for _, case in results))
    medians = {key: statistics.median(speed.second for speed in speeds) for key, speeds in results.items()}
    table = Table(title=f"tok/s, {platform.processor() or platform.machine()}, {arguments.rounds} rounds")
    for title in ("", *cases):
        table.add_column(title)
    for name in names:
        table.add_row(name, *(f"{medians[name, c]:,.1f}" if (name, c) in medians else "-" for c in cases))
    console.print(table)
    line = {}
    for (name, case), median in medians.items():
        prefix = "" if name == "octavo" else f"{name.removeprefix('octavo_')}_"
        line[f"{prefix}{case}_tok_s"] = round(median, 1)
    for case in cases:
        pairs = list(zip(results["octavo", case], results["transformers", case], strict=True))
        ratio = statistics.median(ours.second / theirs.second for ours, theirs in pairs)
        line[f"ratio_{case}_transformers"] = round(ratio, 2)
        ratio = statistics.median(ours.cpu_second / theirs.cpu_second for ours, theirs in pairs)
        line[f"cpu_ratio_{case}_transformers"] = round(ratio, 2)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--quantize", nargs="*", default=["int8", "int4"], help="also these, one stream")
    parser.add_argument("--float32", action="store_true", help="also transformers in float32")
    parser.add_argument("--continuous", action="store_true", help="also transformers' continuous batching")
    arguments = parser.parse_args()
    console = Console(width=110)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = run(arguments, console)
    print(json.dumps(report(results, arguments, console)))


if __name__ == "__main__":
    main()

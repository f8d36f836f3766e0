"""Octavo on a CPU beside its peers: output tokens per second at 1, 8 and 32 streams, and prefill.

Owns the interleaving; knows no peer's inside. Invariant: peers take turns in every round, so that a ratio
compares neighbours in time on a shared machine; medians count. Last line: one JSON object. --write keeps it
in benchmarks/results/cpu.json and renews docs/cpu.md from it.
"""

import argparse
import contextlib
import functools
import json
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import cpu_page
from benchmarks.peer_process import (
    ProcessPeer,
    binding_settings,
    plain_folder,
    python_with,
    thread_settings,
)
from benchmarks.peers_cpu import Octavo, Peer, Transformers, TransformersContinuous
from gpu_worker.models import loader

Makers = dict[str, Callable[[], Peer]]


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


def makers_of(arguments: argparse.Namespace, folder: Path, console: Console) -> Makers:
    """How to start each peer, by the name that it has in the results."""
    model = arguments.model
    makers: Makers = {"octavo": lambda: Octavo("octavo", model)}
    for quantize in arguments.quantize:
        makers[f"octavo_{quantize}"] = functools.partial(
            Octavo, f"octavo --quantize {quantize}", model, "--quantize", quantize
        )
    makers["transformers"] = lambda: Transformers(model, torch.bfloat16)
    if arguments.float32:
        makers["transformers_float32"] = lambda: Transformers(model, torch.float32)
    if arguments.continuous:
        makers["continuous"] = lambda: TransformersContinuous(model, torch.bfloat16)
    makers |= _processes(arguments, folder, console)
    return {name: make for name, make in makers.items() if name not in arguments.without}


def _processes(arguments: argparse.Namespace, folder: Path, console: Console) -> Makers:
    """llama.cpp and vLLM, each where it is installed."""
    makers: Makers = {}

    def add(name: str, module: str, python: Path, settings: list[int] | list[str], **asked: str) -> None:
        log = folder / f"{name}.log"
        makers[name] = functools.partial(ProcessPeer, python, f"benchmarks.{module}", asked, settings, log)

    source = loader.open_model(arguments.model).source
    assert source is not None
    llama = python_with("llama_cpp", arguments.llama_python)
    if llama and source.files[0].suffix == ".gguf":
        for name, dtype in (("llama_cpp", "bfloat16"), ("llama_cpp_file", "file")):
            add(
                name,
                "peer_llama_cpp",
                llama,
                thread_settings(),
                model=str(source.files[0].resolve()),
                dtype=dtype,
            )
    else:
        console.print(f"no llama.cpp: {'the model is no GGUF file' if llama else 'not installed'}")
    vllm = python_with("vllm", arguments.vllm_python)
    if vllm:
        plain = plain_folder(arguments.model, folder)
        add("vllm", "peer_vllm", vllm, binding_settings(), model=str(plain), dtype="bfloat16")
    else:
        console.print("no vLLM: not installed")
    return makers


def run(makers: Makers, arguments: argparse.Namespace, console: Console) -> tuple[Results, dict[str, str]]:
    """Starts every peer, lets them take turns, and stops what was started. Also the peers' full names."""
    with contextlib.ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for name, make in makers.items():
            peers[name] = make()
            stack.callback(peers[name].close)
        results = rounds(peers, arguments, console)
        return results, {name: peer.name for name, peer in peers.items()}


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
    table = Table(title=f"tok/s, {cpu_page.processor()}, {arguments.rounds} rounds")
    for title in ("", *cases):
        table.add_column(title)
    for name in names:
        table.add_row(name, *(f"{medians[name, c]:,.1f}" for c in cases))
    console.print(table)
    line = {}
    for (name, case), median in medians.items():
        prefix = "" if name == "octavo" else f"{name.removeprefix('octavo_')}_"
        line[f"{prefix}{case}_tok_s"] = round(median, 1)
    for name in names:
        if not name.startswith("octavo"):
            for case in cases:
                line |= _ratios(results, name, case)
    return line


def _ratios(results: Results, peer: str, case: str) -> dict[str, float]:
    """Octavo in bfloat16 by a peer, by wall time and by CPU time of all processes."""
    pairs = list(zip(results["octavo", case], results[peer, case], strict=True))
    wall = statistics.median(ours.second / theirs.second for ours, theirs in pairs)
    used = statistics.median(ours.cpu_second / theirs.cpu_second for ours, theirs in pairs)
    return {f"ratio_{case}_{peer}": round(wall, 2), f"cpu_ratio_{case}_{peer}": round(used, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--quantize", nargs="*", default=["int8", "int4"], help="Octavo also with these")
    parser.add_argument("--float32", action="store_true", help="also transformers in float32")
    parser.add_argument(
        "--continuous",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also transformers' continuous batching",
    )
    parser.add_argument("--llama-python", type=Path, help="a Python that has llama-cpp-python")
    parser.add_argument("--vllm-python", type=Path, help="a Python that has vLLM's CPU build")
    parser.add_argument("--without", nargs="*", default=[], help="leave these out, named as in the last line")
    parser.add_argument("--write", action="store_true", help="keep the result and renew docs/cpu.md")
    arguments = parser.parse_args()
    console = Console(width=110)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        results, names = run(makers_of(arguments, Path(folder), console), arguments, console)
    line = report(results, arguments, console)
    if arguments.write:
        cpu_page.keep("speed", {"names": names, "rounds": arguments.rounds, "line": line})
    print(json.dumps(line))


if __name__ == "__main__":
    main()

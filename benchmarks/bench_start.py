"""From `octavo serve` to the first token of an answer: seconds, and CPU seconds of all its processes.

Owns the timing of whole starts, also of several source trees in turns; knows nothing of what a start does.
Invariant: every tree takes one turn a round, so that a comparison is of neighbours in time; medians count.
Last line: one JSON object. --write keeps it in benchmarks/results/cpu.json and renews docs/cpu.md from it.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import grpc
import psutil  # type: ignore[import-untyped]

from benchmarks import cpu_page
from octavo_client import Client, OctavoError

_POLL_SECONDS = 0.02
_LIMIT_SECONDS = 300.0


def free_port() -> int:
    """A port of the loopback interface that nobody holds now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process, its children and what they already waited for."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        times = one.cpu_times()
        total += times.user + times.system
    return total


def start_once(tree: Path, model: Path, flags: list[str]) -> tuple[float, float]:
    """(seconds, CPU seconds) from the start of the command to the first token. Ends what it started."""
    port = free_port()
    paths = os.pathsep.join(str(tree / part) for part in (".", "kernels", "protos"))
    command = [sys.executable, "-m", "octavo_client.cli", "serve", "--model", str(model), "--port", str(port)]
    command += ["--metrics-port", "0", "--worker-metrics-port", "0", *flags]
    started = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as child:
        try:
            _first_token(port)
            return time.monotonic() - started, cpu_seconds(psutil.Process(child.pid))
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(60)


def _first_token(port: int) -> None:
    deadline = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < deadline:
        try:
            with Client(f"127.0.0.1:{port}") as client:
                client.generate("Hello", max_tokens=1)
                return
        except (OctavoError, grpc.RpcError):
            time.sleep(_POLL_SECONDS)
    raise SystemExit(f"no token within {_LIMIT_SECONDS:g} s")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_start", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--tree", type=Path, action="append", help="a source tree; may be given several times"
    )
    parser.add_argument("--flag", action="append", default=[], help="one more argument of octavo serve")
    parser.add_argument("--write", action="store_true", help="keep the result and renew docs/cpu.md")
    options = parser.parse_args()
    trees = [tree.resolve() for tree in options.tree or [Path.cwd()]]
    found: dict[Path, list[tuple[float, float]]] = {tree: [] for tree in trees}
    for number in range(options.rounds):
        for tree in trees:
            found[tree].append(start_once(tree, options.model.resolve(), options.flag))
            seconds, used = found[tree][-1]
            print(f"round {number + 1}, {tree.name}: {seconds:.2f} s, {used:.2f} s of CPU", flush=True)
    medians = {
        tree.name: {"start_s": round(statistics.median(s), 2), "cpu_s": round(statistics.median(c), 2)}
        for tree, results in found.items()
        for s, c in [tuple(zip(*results, strict=True))]
    }
    if options.write:
        cpu_page.keep("start", {"rounds": options.rounds, "trees": medians})
    print(json.dumps({"rounds": options.rounds, "load_1min": round(os.getloadavg()[0], 1), "trees": medians}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`octavo serve`: a worker and a scheduler in one terminal, kept running.

Owns the arguments and what is printed; the supervisor owns the processes. Invariant: when it returns, both
processes are gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from octavo_client.aio import AsyncClient
from octavo_client.channel import DEFAULT_SERVER
from octavo_client.console import news_text, stdout_console
from octavo_client.errors import OctavoError
from octavo_client.supervisor import stack
from octavo_client.supervisor.events import Line, News, Serving
from octavo_client.supervisor.supervisor import RestartPolicy, Supervisor

_WATCH_SECONDS = 0.25
_HELP = {
    "device": "auto, cpu or cuda",
    "dtype": "auto, float32, bfloat16, float16 or float64",
    "num-blocks": "blocks of the KV pool; default: what fits into the memory",
    "block-size": "tokens a block (16)",
    "gpu-memory-utilization": "share of the device's memory to use (0.9)",
    "max-num-batched-tokens": "tokens a step at most",
    "max-num-seqs": "sequences a step at most",
    "max-model-len": "longest context in tokens",
    "kernel-backend": "auto, torch or triton",
    "load-format": "auto, or dummy for random weights",
    "num-layers": "cut the model to so many layers; with --load-format dummy",
    "depth": "steps in flight, 1 or 2 (2)",
    "hash-seed": "seed of the prefix index's hash in hex",
    "max-queue-requests": "waiting requests at most; more are refused",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="DIR", help=f"model folder or GGUF file ({stack.DEFAULT_MODEL})")
    parser.add_argument(
        "--listen",
        default=os.environ.get("OCTAVO_LISTEN", DEFAULT_SERVER),
        metavar="ADDR",
        help="the scheduler's address (%(default)s)",
    )
    parser.add_argument("--port", type=int, metavar="P", help="short for --listen 127.0.0.1:P; 0 picks one")
    parser.add_argument(
        "--metrics-port", type=int, default=stack.DEFAULT_METRICS_PORT, metavar="P", help="(%(default)s)"
    )
    parser.add_argument(
        "--worker-metrics-port",
        type=int,
        default=stack.DEFAULT_WORKER_METRICS_PORT,
        metavar="P",
        help="(%(default)s)",
    )
    both = parser.add_argument_group("handed to the worker, the scheduler, or both")
    for name in dict.fromkeys((*stack.WORKER_FLAGS, *stack.SCHEDULER_FLAGS)):
        both.add_argument(f"--{name}", metavar="X", dest=f"flag_{name}", help=_HELP[name])
    both.add_argument("--no-prefix-cache", action="store_true", help="never share blocks between requests")
    both.add_argument(
        "--worker-arg", action="append", default=[], metavar="ARG", help="any argument of the worker"
    )
    both.add_argument("--scheduler-arg", action="append", default=[], metavar="ARG", help="of the scheduler")
    parser.add_argument(
        "--max-restarts", type=int, default=8, metavar="N", help="quick deaths in a row (%(default)s)"
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=stack.DRAIN_SECONDS + 5,
        metavar="S",
        help="seconds to end by itself (%(default)s)",
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="(%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    options = stack_options(arguments)
    with stack.RunDir() as run_dir:
        return asyncio.run(_serve(arguments, options, run_dir.socket))


def stack_options(arguments: argparse.Namespace) -> stack.StackOptions:
    """What to run, from the command line."""
    values = {
        name.removeprefix("flag_"): value
        for name, value in vars(arguments).items()
        if name.startswith("flag_") and value is not None
    }
    if arguments.no_prefix_cache:
        values["no-prefix-cache"] = ""
    return stack.StackOptions(
        model=stack.find_model(arguments.model),
        listen=arguments.listen if arguments.port is None else f"127.0.0.1:{arguments.port}",
        metrics_port=arguments.metrics_port,
        worker_metrics_port=arguments.worker_metrics_port,
        values=values,
        worker_args=arguments.worker_arg,
        scheduler_args=arguments.scheduler_arg,
    )


async def _serve(arguments: argparse.Namespace, options: stack.StackOptions, socket: str) -> int:
    board = _Board(stdout_console(), options, raw=arguments.log_format == "json")
    policy = RestartPolicy(max_quick_deaths=arguments.max_restarts)
    supervisor = Supervisor(stack.child_specs(options, socket), board.take, policy, arguments.grace)

    def stop() -> None:
        board.stopping(again=supervisor.stopping)
        supervisor.stop()

    on_signals(stop)
    watch = asyncio.create_task(board.watch())
    try:
        good = await supervisor.run()
    finally:
        watch.cancel()
        board.close()
        await asyncio.gather(watch, return_exceptions=True)
    if not good:
        print(f"octavo: {supervisor.failure}", file=sys.stderr)
    return 0 if good else 1


def on_signals(stop: Callable[[], None]) -> None:
    """Calls stop at SIGINT and SIGTERM, in place of the default."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


class _Board:
    """Prints the news, watches health, and says how to talk to the services once they are ready."""

    def __init__(self, console: Console, options: stack.StackOptions, raw: bool) -> None:
        self._console = console
        self._options = options
        self._raw = raw
        self._serving: dict[str, Serving] = {}
        self._known = asyncio.Event()
        self._ending = False
        self._status = console.status("starting") if console.is_terminal and not raw else None
        if self._status is not None:
            self._status.start()

    def take(self, news: News) -> None:
        if isinstance(news, Serving):
            self._serving[news.name] = news
            self._known.set()
        if self._raw:
            if isinstance(news, Line):
                print(news.text, flush=True)
            return
        self._console.print(news_text(news))

    def stopping(self, again: bool) -> None:
        """Says that the end has begun; from now on nothing is said about health."""
        self._ending = True
        self._stop_spinner()
        if not self._raw:
            words = (
                "ending at once"
                if again
                else "stopping: running requests may finish; Ctrl-C again ends at once"
            )
            self._console.print(Text(f"octavo    {words}", style="yellow"))

    def close(self) -> None:
        self._stop_spinner()

    def _stop_spinner(self) -> None:
        if self._status is not None:
            self._status.stop()

    async def watch(self) -> None:
        """Polls health and prints each change."""
        while "scheduler" not in self._serving:
            await self._known.wait()
            self._known.clear()
        loop = asyncio.get_running_loop()
        since, ready, first = loop.time(), False, True
        async with AsyncClient(self._serving["scheduler"].listen, timeout=2.0) as client:
            while True:
                missing = await client.readiness()
                if self._ending:
                    return
                if (missing == "") != ready:
                    ready, waited, since = missing == "", loop.time() - since, loop.time()
                    await self._say(client, ready, waited, first)
                    first = False
                if not ready and self._status is not None:
                    self._status.update(f"waiting: {missing} ({loop.time() - since:.0f} s)")
                await asyncio.sleep(_WATCH_SECONDS)

    async def _say(self, client: AsyncClient, ready: bool, waited: float, first: bool) -> None:
        if self._status is not None:
            self._status.stop() if ready else self._status.start()
        if self._raw:
            return
        if not ready:
            self._console.print(Text("octavo    not ready: no worker; streams wait", style="yellow"))
        elif not first:
            self._console.print(Text(f"octavo    ready again after {waited:.1f} s", style="green"))
        else:
            self._console.print(await self._how_to_talk(client))

    async def _how_to_talk(self, client: AsyncClient) -> Text:
        address = client.target
        text = Text("octavo    ready", style="bold green")
        try:
            info, stats = await client.model_info(), await client.stats()
            size = stats.num_blocks * stats.bytes_per_block / 2**20
            text.append(
                f": {info.model_id}, {stats.num_blocks} blocks of {stats.block_size} tokens"
                f" ({size:,.0f} MiB of {info.kv_dtype} KV pool)",
                style="not bold default",
            )
        except OctavoError as error:
            text.append(f" ({error.message})", style="yellow")
        here = "" if address == DEFAULT_SERVER else f" --server {address}"
        body = json.dumps({"text": "The capital of France is", "stopping": {"max_tokens": 16}})
        method = "octavo.v1.InferenceService/Generate"
        metrics = " ".join(
            f"http://127.0.0.1:{news.metrics_port}/metrics"
            for _, news in sorted(self._serving.items())
            if news.metrics_port
        )
        rows = (
            ("chat", f'octavo chat{here} "What is a KV cache?"'),
            ("watch", f"octavo top{here}"),
            ("grpcurl", f"grpcurl -plaintext -d '{body}' {address} {method}"),
            (
                "buf",
                f"buf curl --protocol grpc --http2-prior-knowledge -d '{body}' http://{address}/{method}",
            ),
            ("metrics", metrics or "off"),
            ("stop", "Ctrl-C"),
        )
        for name, command in rows:
            text.append(f"\n  {name:<8}", style="not bold cyan").append(command, style="not bold default")
        return text

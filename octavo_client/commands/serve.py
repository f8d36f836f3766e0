"""`octavo serve`: a worker, a scheduler and perhaps a gateway in one terminal, kept running.

Owns the arguments and what is printed; the supervisor owns the processes. Invariant: when it returns, all of
them are gone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable

from octavo.command_line import USAGE_STATUS, address, real, whole, wrong
from octavo.transport import require_address
from octavo_client.board import Board, JsonBoard, TerminalBoard
from octavo_client.channel import DEFAULT_SERVER
from octavo_client.console import outlive_readers, stdout_console
from octavo_client.errors import BadArgument
from octavo_client.supervisor import stack
from octavo_client.supervisor.run_dir import RunDir
from octavo_client.supervisor.supervisor import RestartPolicy, Supervisor

_PORT = whole(0, 65535)
_HELP = {
    "device": "auto, cpu or cuda",
    "dtype": "auto, float32, bfloat16, float16 or float64",
    "kv-cache-dtype": "auto, or fp8_e4m3 for twice the KV blocks",
    "num-blocks": "blocks of the KV pool; default: what fits into the memory",
    "block-size": "tokens a block (16)",
    "gpu-memory-utilization": "share of the device's memory to use (0.9 on CUDA, 0.25 on a CPU)",
    "max-num-batched-tokens": "tokens a step at most",
    "max-num-seqs": "sequences a step at most",
    "max-model-len": "longest context in tokens",
    "cuda-graphs": "auto, or off",
    "kernel-backend": "auto, torch, triton or cpu",
    "attention-backend": "auto, triton, flash (flash-attn) or torch",
    "model-impl": "auto, octavo or transformers: whose code runs the layers",
    "quantize": "none, int8 or int4: weights on a CPU, for single streams",
    "threads": "threads on a CPU",
    "load-format": "auto, or dummy for random weights",
    "num-layers": "cut the model to so many layers; with --load-format dummy",
    "depth": "steps in flight, 1 to 4; beyond the second only short ones (3)",
    "hash-seed": "seed of the prefix index's hash in hex",
    "max-queue-requests": "waiting requests at most; more are refused",
    "check-invariants": "every-step, idle or off (idle)",
    "generation-config": "none, or auto: the model folder's sampling defaults",
    "api-key-file": "API keys of the gateway, one a line",
    "served-model-name": "name of the model over HTTP",
    "otlp-traces-endpoint": "OTLP/gRPC collector for the spans of all of them",
    "record": "file for the log of the scheduler's inputs, for octavo replay",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="DIR", help=f"model folder or GGUF file ({stack.DEFAULT_MODEL})")
    parser.add_argument(
        "--listen",
        type=address,
        metavar="ADDR",
        help=f"the scheduler's address (OCTAVO_LISTEN, then {DEFAULT_SERVER})",
    )
    parser.add_argument("--port", type=_PORT, metavar="P", help="short for --listen 127.0.0.1:P; 0 picks one")
    parser.add_argument(
        "--metrics-port", type=_PORT, default=stack.DEFAULT_METRICS_PORT, metavar="P", help="(%(default)s)"
    )
    parser.add_argument(
        "--worker-metrics-port",
        type=_PORT,
        default=stack.DEFAULT_WORKER_METRICS_PORT,
        metavar="P",
        help="(%(default)s)",
    )
    parser.add_argument(
        "--http",
        type=_http_address,
        metavar="P",
        help="serve OpenAI's HTTP API too, at 127.0.0.1:P or HOST:PORT; 0 picks a port",
    )
    both = parser.add_argument_group("handed to the worker, the scheduler or the gateway")
    for name in dict.fromkeys((*stack.WORKER_FLAGS, *stack.SCHEDULER_FLAGS, *stack.GATEWAY_FLAGS)):
        both.add_argument(f"--{name}", metavar="X", dest=f"flag_{name}", help=_HELP[name])
    both.add_argument("--no-prefix-cache", action="store_true", help="never share blocks between requests")
    both.add_argument(
        "--worker-arg", action="append", default=[], metavar="ARG", help="any argument of the worker"
    )
    both.add_argument("--scheduler-arg", action="append", default=[], metavar="ARG", help="of the scheduler")
    both.add_argument("--gateway-arg", action="append", default=[], metavar="ARG", help="of the gateway")
    parser.add_argument(
        "--max-restarts", type=whole(0), default=8, metavar="N", help="quick deaths in a row (%(default)s)"
    )
    parser.add_argument(
        "--grace",
        type=real(0),
        default=stack.DRAIN_SECONDS + 5,
        metavar="S",
        help="seconds to end by itself (%(default)s)",
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="(%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    options = stack_options(arguments)
    outlive_readers()
    with RunDir() as run_dir:
        return asyncio.run(_serve(arguments, options, run_dir.socket))


def stack_options(arguments: argparse.Namespace) -> stack.StackOptions:
    """What to run, from the command line."""
    values = {
        name.removeprefix("flag_"): value
        for name, value in vars(arguments).items()
        if name.startswith("flag_") and value is not None
    }
    for name in {*stack.GATEWAY_FLAGS} - {*stack.WORKER_FLAGS, *stack.SCHEDULER_FLAGS}:
        if name in values and not arguments.http:
            raise BadArgument(f"--{name} {values[name]}: is the gateway's; give --http too", field=name)
    if arguments.no_prefix_cache:
        values["no-prefix-cache"] = ""
    return stack.StackOptions(
        model=stack.find_model(arguments.model),
        listen=_listen(arguments),
        metrics_port=arguments.metrics_port,
        worker_metrics_port=arguments.worker_metrics_port,
        values=values,
        worker_args=arguments.worker_arg,
        scheduler_args=arguments.scheduler_arg,
        http=arguments.http or "",
        gateway_args=arguments.gateway_arg,
    )


def _listen(arguments: argparse.Namespace) -> str:
    if arguments.port is not None:
        return f"127.0.0.1:{arguments.port}"
    if arguments.listen:
        return str(arguments.listen)
    found = os.environ.get("OCTAVO_LISTEN") or DEFAULT_SERVER
    try:
        require_address(found)
    except ValueError as error:
        raise BadArgument(f"OCTAVO_LISTEN {found}: {error}", field="listen") from None
    return found


def _http_address(given: str) -> str:
    """The type of --http: a port alone is one of this machine."""
    found = f"127.0.0.1:{given}" if given.isdecimal() else given
    try:
        require_address(found)
    except ValueError:
        good = False
    else:
        good = not found.startswith("unix")
    if not good:
        raise argparse.ArgumentTypeError(wrong(given, "a port from 0 to 65535, or host:port"))
    return found


async def _serve(arguments: argparse.Namespace, options: stack.StackOptions, socket: str) -> int:
    board: Board = JsonBoard() if arguments.log_format == "json" else TerminalBoard(stdout_console())
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
    if good:
        return 0
    return USAGE_STATUS if supervisor.refused else 1


def on_signals(stop: Callable[[], None]) -> None:
    """Calls stop at SIGINT, SIGTERM and the terminal's end, in place of the default.

    A shell without job control starts what follows `&` with SIGINT ignored; it ends this too. Who asks for
    SIGHUP to be ignored means it: nohup stays nohup.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop)

"""`octavo demo`: the whole system once, from start to end.

Owns the arguments; the script is octavo_client.demo's. Invariant: it ends by itself and leaves no process.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from octavo.command_line import real, whole
from octavo_client.console import stdout_console
from octavo_client.demo import run_demo
from octavo_client.demo_view import DemoView
from octavo_client.supervisor import stack


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="DIR", help=f"model folder ({stack.DEFAULT_MODEL})")
    parser.add_argument(
        "--max-tokens", type=whole(1, 1 << 20), default=64, metavar="N", help="tokens an answer (%(default)s)"
    )
    parser.add_argument(
        "--num-blocks", type=whole(1), default=256, metavar="N", help="blocks of the pool (%(default)s)"
    )
    parser.add_argument(
        "--timeout",
        type=real(0, above=True),
        default=300.0,
        metavar="S",
        help="for the model to load (%(default)s)",
    )
    parser.add_argument(
        "--worker-arg", action="append", default=[], metavar="ARG", help="any argument of the worker"
    )
    parser.add_argument(
        "--scheduler-arg", action="append", default=[], metavar="ARG", help="of the scheduler"
    )


def run(arguments: argparse.Namespace) -> int:
    options = stack.StackOptions(
        model=stack.find_model(arguments.model),
        listen="127.0.0.1:0",
        metrics_port=0,
        worker_metrics_port=0,
        values={"num-blocks": str(arguments.num_blocks)},
        worker_args=arguments.worker_arg,
        scheduler_args=arguments.scheduler_arg,
    )
    return asyncio.run(_demo(options, arguments.max_tokens, arguments.timeout))


async def _demo(options: stack.StackOptions, max_tokens: int, timeout: float) -> int:  # noqa: ASYNC109 - an argument
    view = DemoView(stdout_console())
    demo = asyncio.create_task(run_demo(options, view, max_tokens, timeout))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, demo.cancel)
    try:
        account = await demo
    except asyncio.CancelledError:
        print("octavo: interrupted; both processes have ended", file=sys.stderr)
        return 130
    finally:
        view.close()
    view.account(account)
    view.ended()
    return 0

"""The `octavo` command: finds the subcommand, runs it, turns failures into one line and an exit code.

Owns exit codes and the list of subcommands; knows nothing of what they do. Invariant: no traceback reaches
the user for a refusal, a missing server, a bad argument or Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from octavo.command_line import USAGE_STATUS, Parser
from octavo_client.commands.options import check_server_variable
from octavo_client.errors import BadArgument, OctavoError

COMMANDS = {
    "serve": "run a worker and a scheduler, and perhaps a gateway, in one terminal, and keep them running",
    "chat": "talk to a model, or ask it one question",
    "generate": "complete texts or JSON lines of requests; writes JSON lines",
    "top": "watch the KV pool and the requests live",
    "doctor": "check versions, device, kernels, ports and environment",
    "demo": "start a model, ask it questions, and show what happened in the KV pool",
    "simulate": "run a trace through the scheduler's core, without a GPU",
    "scheduler": "run the scheduler service alone",
    "replay": "make a scheduler's recorded decisions again",
    "worker": "run a worker alone",
    "gateway": "run the OpenAI-compatible HTTP gateway alone",
}
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, USAGE_STATUS, 130


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser of all commands; only the chosen one's module is imported and its arguments known."""
    parser = Parser(
        prog="octavo",
        description="Serve language models from a paged KV cache, and look into it.",
        epilog="octavo COMMAND --help says more. OCTAVO_SERVER is the scheduler's address (127.0.0.1:7450).",
    )
    parser.add_argument("--version", action="version", version=f"octavo {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        added = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == chosen:
            module = importlib.import_module(f"octavo_client.commands.{name}")
            module.configure(added)
            added.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own log lines are no message to a user
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in words if not word.startswith("-")), None)
    if chosen in ("scheduler", "worker", "gateway", "simulate", "replay"):
        return importlib.import_module(f"octavo_client.commands.{chosen}").replace_process(words[1:])  # type: ignore[no-any-return]
    try:
        arguments = build_parser(chosen).parse_args(words)
        check_server_variable(arguments)
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output went away; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except BadArgument as error:
        return _fail(error.message, EXIT_USAGE)
    except OctavoError as error:
        return _fail(error.message)


def _fail(message: str, code: int = EXIT_FAILED) -> int:
    print(f"octavo: {' '.join(message.split())}", file=sys.stderr)
    return code


def _version() -> str:
    try:
        return metadata.version("octavo")
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())

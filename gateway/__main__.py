"""The gateway process: `python -m gateway --server ADDR --listen HOST:PORT`.

Owns start and the exit status; knows no request. Invariant: the process says in one line why it ends, unless
it was asked to.
"""

import sys

import octavo.polling  # noqa: F401  before anything that imports gRPC
from gateway.config import load


def main() -> int:
    """Exit status: 0 after a drain, 1 after a failure, 2 for bad settings."""
    settings = load(sys.argv[1:])
    from gateway.server import run  # after the settings, so that --help needs no server

    return run(settings)


if __name__ == "__main__":
    sys.exit(main())

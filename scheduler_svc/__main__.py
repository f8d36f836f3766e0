"""The scheduler process: `python -m scheduler_svc --model DIR --worker ADDR`.

Owns start, signals and the exit status; knows no request. Invariant: the process lives only while its engine
lives, and says in one line why it ends otherwise.
"""

import sys

import octavo.polling  # noqa: F401  before anything that imports gRPC
from scheduler_svc.config import load


def main() -> int:
    """Exit status: 0 after a drain, 1 after a failure, 2 for bad settings."""
    settings = load(sys.argv[1:])
    from scheduler_svc.app import run  # after the settings, so that --help needs no gRPC

    return run(settings)


if __name__ == "__main__":
    sys.exit(main())

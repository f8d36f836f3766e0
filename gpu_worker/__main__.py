"""The worker process: `python -m gpu_worker --model DIR`.

Owns what comes before PyTorch is imported: the settings, signals until `life.py` takes them, and waking the
device meanwhile. Invariant: a wrong command line is refused before anything large is imported.
"""

import logging
import os
import signal
import sys

import octavo.polling  # noqa: F401  before anything that imports gRPC
from gpu_worker import wake
from gpu_worker.config import read_settings
from gpu_worker.start_clock import StartClock
from octavo.logging import configure


def main(argv: list[str] | None = None) -> int:
    """Runs a worker until it is told to stop.

    0: stopped by a signal; 2: bad settings; 1: anything else. One line on stderr says why.
    """
    clock = StartClock(with_process=True)
    settings = read_settings(sys.argv[1:] if argv is None else argv)
    configure("worker")
    logging.getLogger().setLevel(settings.log_level)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stopped_early)
    if settings.device != "cpu":
        wake.wake_device()
    from gpu_worker import life

    return life.run(settings, clock)


def _stopped_early(_number: int, _frame: object) -> None:
    """Nothing is held yet that needs an orderly end."""
    logging.getLogger("gpu_worker").info("stopped while starting")
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

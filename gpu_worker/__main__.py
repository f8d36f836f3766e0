"""The worker process: `python -m gpu_worker --model DIR`.

Owns what comes before PyTorch is imported: the settings, and waking the device meanwhile; the rest is
`life.py`. Invariant: a wrong command line is refused before anything large is imported.
"""

import logging
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
    if settings.device != "cpu":
        wake.wake_device()
    from gpu_worker import life

    return life.run(settings, clock)


if __name__ == "__main__":
    sys.exit(main())

"""Tiny programs for the supervisor to run, and a look at which processes live.

Owns the programs' texts; knows no supervisor. Invariant: each program ends by itself within a minute.
"""

import sys
import time
from pathlib import Path

from octavo_client.supervisor.child import ChildSpec

SERVING = 'print(\'{"event": "serving", "service": "x", "listen": "here", "metrics_port": 7}\', flush=True)'
HEAD = "import os, signal, subprocess, sys, time\nfrom pathlib import Path\n"
WAIT = "time.sleep(60)"
GONE_SECONDS = 60.0


def program(*lines: str, name: str = "worker") -> ChildSpec:
    """A child that runs these lines of Python."""
    return ChildSpec(name, [sys.executable, "-c", HEAD + "\n".join(lines)])


def counted(counter: Path) -> str:
    """A line that sets `run` to the number of this run, from 1, kept in a file."""
    read = f"p = Path({str(counter)!r}); run = int(p.read_text()) + 1 if p.exists() else 1"
    return f"{read}; p.write_text(str(run))"


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not yet waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def gone(pids: list[int]) -> bool:
    """Waits for processes to end; False when one still lives after a while."""
    end = time.monotonic() + GONE_SECONDS
    while any(alive(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True

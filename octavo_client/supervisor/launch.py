"""Runs a command that dies with its parent: `python -I -S launch.py PARENT_PID [--watch] COMMAND...`.

Owns the tie between the two processes; knows no service, and imports only what starts fast. Invariant: once
the parent is gone, even by kill -9, the command is killed.
"""

import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Becomes the command on Linux; elsewhere stays as its parent and watches. Returns its exit code."""
    parent, command = int(argv[1]), argv[2:]
    if command[0] == "--watch":
        return _watch(parent, command[1:])
    if sys.platform == "linux":
        _tie(parent)
        os.execvp(command[0], command)
    return _watch(parent, command)


def _tie(parent: int) -> None:
    """Asks the kernel for SIGKILL at the parent's death; exec keeps the request."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the parent ended before the command began")


def _watch(parent: int, command: list[str]) -> int:
    """Without prctl: runs the command, passes signals on, and kills it when the parent changes."""
    import subprocess

    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _frame: child.send_signal(caught))
    while child.poll() is None:
        if os.getppid() != parent:
            child.kill()
            return child.wait()
        time.sleep(0.1)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv))

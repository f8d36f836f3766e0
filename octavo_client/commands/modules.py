"""Runs a service's module in place of this process.

Owns the exec; imports no service. Invariant: it only looks for the package's files, never runs its code
here.
"""

import importlib.util
import os
import sys


def become(module: str, extra: str, arguments: list[str]) -> int:
    """Replaces this process by `python -m module`; returns 1 after one line when it is not installed."""
    if importlib.util.find_spec(module.partition(".")[0]) is not None:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])
    print(f"octavo: {module} is not installed; pip install 'octavo[{extra}]'", file=sys.stderr)
    return 1

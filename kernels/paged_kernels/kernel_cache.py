"""Where kernels that were compiled on this machine are kept from one start to the next.

Owns the folder's name; knows no compiler. Invariant: the folder is the user's own.
"""

import os
from pathlib import Path

CACHE_VARIABLE = "OCTAVO_KERNEL_CACHE"


def cache_folder() -> Path:
    """OCTAVO_KERNEL_CACHE, else octavo/ in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "octavo"

"""The private folder of one `octavo serve`, with the socket between worker and scheduler.

Owns the folder, its lock, and the folders of those that were killed; knows no process. Invariant: a folder
goes with its owner, or at the next start after it, and never while the owner lives: the system gives the lock
up when a process ends, however it does.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from octavo.transport import unix_address

_LONGEST_SOCKET_PATH = 100
_PREFIX, _SOCKET = "octavo-run-", "worker.sock"
_DRAWN = 8
"""Characters that tempfile puts behind a prefix."""


class RunDir:
    """A folder for the socket; removed at the end. Removes, at the start, what killed ones have left."""

    def __init__(self) -> None:
        base = _base()
        _remove_left_behind(base)
        self.path, self._lock = _locked_folder(base)

    @property
    def socket(self) -> str:
        """Its address."""
        return unix_address(self.path / _SOCKET)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)


def _base() -> Path:
    """Where folders of this user's processes go, by a path short enough for a socket below it."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    below = len(f"/{_PREFIX}/{_SOCKET}") + _DRAWN
    if len(os.fsencode(base)) + below > _LONGEST_SOCKET_PATH or not os.access(base, os.W_OK):
        base = "/tmp"
    return Path(base)


def _locked_folder(base: Path) -> tuple[Path, int | None]:
    """A new folder and the descriptor of its lock; None where the file system has no locks."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        try:
            return path, _lock(path)
        except (BlockingIOError, FileNotFoundError):
            continue  # between both steps another start took it for one left behind
        except OSError:
            return path, None


def _lock(folder: Path) -> int:
    """A descriptor that holds a folder's lock until it is closed, as it is by its process's death; no child
    has it.

    Raises BlockingIOError where another holds it, FileNotFoundError where the folder is gone.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.lstat()
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove_left_behind(base: Path) -> None:
    """Removes this user's folders that nobody has locked; one that holds anything else is left alone."""
    for path in base.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            lock = _lock(path)
            try:
                _remove(path)
            finally:
                os.close(lock)


def _remove(folder: Path) -> None:
    """Raises OSError where the folder holds more than the socket."""
    (folder / _SOCKET).unlink(missing_ok=True)
    folder.rmdir()

"""Files that settings name, looked at before anything is built.

Owns the reading of the pool page's token and the look at the log's place; knows no setting's name. Invariant:
what is wrong is a ValueError that says it in a few words.
"""

import errno
import os
from pathlib import Path

from octavo.settings import reason_of


def token_in(path: str) -> str:
    """The token in a file, empty for no file. Raises ValueError."""
    if not path:
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {reason_of(error)}") from error
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise ValueError("must hold 16 printable ASCII characters or more")
    return token


def require_writable(path: Path) -> None:
    """Raises ValueError where no file of this name can be begun, as far as can be seen without doing it."""
    try:
        why = _obstacle(path)
    except OSError as error:
        why = error.errno or errno.EACCES
    if why:
        raise ValueError(f"cannot be written: {os.strerror(why)}")


def _obstacle(path: Path) -> int:
    """The number of the error that writing would meet, 0 for none. Raises OSError."""
    folder = path.parent
    if path.is_dir():
        return errno.EISDIR
    if path.exists() and not path.is_file():
        return 0 if os.access(path, os.W_OK) else errno.EACCES
    if not folder.is_dir():
        return errno.ENOTDIR if folder.exists() else errno.ENOENT
    return 0 if os.access(folder, os.W_OK | os.X_OK) else errno.EACCES

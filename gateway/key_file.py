"""The file of accepted API keys.

Owns its reading; knows no request. Invariant: a file that leaves it holds a key, and each is one that a
client can send.
"""

from pathlib import Path

from octavo.settings import reason_of


def keys_in(path: Path) -> tuple[str, ...]:
    """One a line, empty lines and lines with # left out. Raises ValueError, saying what is wrong with it."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {reason_of(error)}") from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ValueError("holds no key")
    for number, line in enumerate(lines, 1):
        if " " in line and not line.startswith("#"):
            raise ValueError(f"line {number} holds a space, so no client can send it")
    return keys

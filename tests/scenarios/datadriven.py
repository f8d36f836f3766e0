"""Plain-text scripts with expected output, after the datadriven tests of etcd's raft.

Owns the file format and its rewriting; does not know what the commands do. Invariant: rewriting a file
changes nothing but the lines between a `----` and the next blank line.

A file is a list of cases, separated by blank lines. `#` begins a comment line outside expected output.

    command word key=value ...
    ----
    expected output
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SEPARATOR = "----"


@dataclass(frozen=True)
class Command:
    """One command line. words: what has no `=`; options: what has one."""

    line: int
    name: str
    words: tuple[str, ...]
    options: dict[str, str]


def run(path: Path, handle: Callable[[Command], str], rewrite: bool) -> list[str]:
    """Runs every case of a file; returns what differed, or writes it into the file."""
    lines = path.read_text().split("\n")
    differences: list[str] = []
    written: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        written.append(line)
        at += 1
        if not line.strip() or line.startswith("#"):
            continue
        command = _parse(at, line)
        if at >= len(lines) or lines[at] != SEPARATOR:
            raise ValueError(f"{path.name}:{at}: {line!r} is not followed by {SEPARATOR}")
        at += 1
        expected = []
        while at < len(lines) and lines[at].strip():
            expected.append(lines[at])
            at += 1
        actual = handle(command).rstrip("\n").split("\n")
        written += [SEPARATOR, *actual]
        if actual != expected:
            differences.append("\n".join([f"{path.name}:{command.line}: {line}", "  expected:", *expected]))
            differences.append("\n".join(["  got:", *actual]))
    if rewrite:
        path.write_text("\n".join(written))
        return []
    return differences


def _parse(number: int, line: str) -> Command:
    name, *rest = line.split()
    words = tuple(word for word in rest if "=" not in word)
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return Command(number, name, words, options)

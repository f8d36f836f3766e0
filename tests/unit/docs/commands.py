"""The commands that the documentation shows.

Owns their reading out of README.md and docs/; runs nothing. Invariant: a block is known by its first command,
and the mark above it says whether it is run.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_COMMAND = re.compile(
    r"^(?:\$ )?((?:\.venv/bin/)?(?:octavo [a-z]+(?: .*)?|(?:make|docker|pip|python|curl) .*))$"
)
_MARK = re.compile(r"^<!-- (run|not run): (.+) -->$")


@dataclass(frozen=True)
class Block:
    """where: file and line. mark: run, not run, or empty; about: the words of the mark."""

    where: str
    mark: str
    about: str
    commands: tuple[str, ...]


def blocks() -> list[Block]:
    """Every block without a language, or of sh, that holds a command."""
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        lines = path.read_text(encoding="utf-8").splitlines()
        fenced = False
        for number, line in enumerate(lines):
            if not line.startswith("```"):
                continue
            fenced = not fenced
            if fenced and line in ("```", "```sh"):
                block = _block(f"{path.relative_to(ROOT)}:{number + 1}", lines, number)
                found += [block] if block.commands else []
    return found


def _block(where: str, lines: list[str], number: int) -> Block:
    """A transcript's commands are the lines after a prompt; without prompts every line may be one."""
    inside = lines[number + 1 : lines.index("```", number + 1)]
    typed = [line for line in inside if line.startswith("$ ")] or inside
    commands = (_COMMAND.match(line) for line in typed)
    mark = _MARK.match(lines[number - 1]) if number else None
    shown = tuple(re.sub(r"\s{2,}#.*$", "", match[1]).strip() for match in commands if match)
    return Block(where, mark[1] if mark else "", mark[2] if mark else "", shown)

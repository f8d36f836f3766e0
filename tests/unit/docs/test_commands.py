"""Commands of the documentation: marked, and made of parts that exist. tests/e2e/cli runs those marked so."""

import functools
import re
import subprocess
import sys

import pytest

from tests.unit.docs.commands import ROOT, Block, blocks

BLOCKS = blocks()
COMMANDS = sorted({command for block in BLOCKS for command in block.commands})


@functools.cache
def help_of(name: str) -> str:
    command = [sys.executable, "-m", "octavo_client.cli", name, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"octavo {name} --help: {done.stderr}"
    return done.stdout


def test_there_are_commands_that_are_run_and_such_that_are_not() -> None:
    assert {block.mark for block in BLOCKS} == {"run", "not run"}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_a_block_of_commands_says_whether_it_is_run(block: Block) -> None:
    assert block.mark, f"{block.where}: needs <!-- run: ... --> or <!-- not run: why --> above it"
    assert block.mark == "not run" or block.about == "while it serves"


@pytest.mark.parametrize("command", [one for one in COMMANDS if re.match(r"(\.venv/bin/)?octavo ", one)])
def test_an_octavo_command_and_its_flags_exist(command: str) -> None:
    words = command.split()
    known = help_of(words[1])
    for flag in re.findall(r"(?<=\s)--[a-z][a-z-]*", command):
        assert re.search(rf"{flag}\b", known), f"{words[1]} has no {flag}"


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.startswith("make ")])
def test_a_task_exists(command: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE)

"""Prints what an image has to install: `python deploy/requirements.py EXTRA ... [--without NAME ...]`.

Owns the choice among pyproject.toml's requirements, so that an image's layer of dependencies changes with
them alone; knows no index and no version. Invariant: a name left out must be one of the requirements.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def requirements(project: Path, extras: Sequence[str], without: Sequence[str] = ()) -> list[str]:
    """The requirements of the package and of these extras. Raises KeyError for a name that is not there."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    lines = [
        *table["dependencies"],
        *(line for one in extras for line in table["optional-dependencies"][one]),
    ]
    names = {name_of(line): line for line in lines}
    for name in without:
        del names[name]
    return list(names.values())


def name_of(requirement: str) -> str:
    """The distribution's name of a requirement, without version, extras and markers."""
    return re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0]


def main(argv: Sequence[str] | None = None) -> int:
    """One requirement a line on stdout."""
    parser = argparse.ArgumentParser(prog="python deploy/requirements.py", description=__doc__)
    parser.add_argument("extras", nargs="+", metavar="EXTRA")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--project", type=Path, default=Path("pyproject.toml"))
    options = parser.parse_args(argv)
    lines = requirements(options.project, options.extras, options.without)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Tables inside a page of the documentation, renewed from rows made by code.

Owns how a page is renewed or found stale; knows no page and no row. Invariant: the text around the tables,
and a table that is up to date, are left as they are.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def renewed(text: str, tables: Mapping[str, Sequence[str]]) -> str:
    """The page with these tables as they ought to be. tables: the rows under each header line."""
    out: list[str] = []
    skipping = False
    for line in text.splitlines():
        skipping = skipping and line.startswith("|")
        if skipping:
            continue
        out.append(line)
        if line in tables:
            out += ["|---" * (line.count("|") - 1) + "|", *tables[line]]
            skipping = True
    return "\n".join(out) + "\n"


def run(path: Path, page: Callable[[str], str], module: str) -> int:
    """With --write renews the page; else says if it is stale, by exit status 1."""
    text = path.read_text(encoding="utf-8")
    wanted = page(text)
    if "--write" in sys.argv:
        path.write_text(wanted, encoding="utf-8")
    elif text != wanted:
        print(f"docs/{path.name} is stale: python -m {module} --write")
        return 1
    return 0

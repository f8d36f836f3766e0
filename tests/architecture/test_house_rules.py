"""The rules of the house that a program can read off the sources."""

import ast
import re
from collections.abc import Iterator

from tests.architecture.sources import sources, text_of

FILE_LINES = 330
FUNCTION_LINES = 60
FORBIDDEN_NAMES = {"page", "pages", "cache_handle", "batch_id"}
FORBIDDEN_TEXT = (
    r"\bTODO\b",
    r"\bFIXME\b",
    r"shell\s*=\s*True",
    r"torch\.load\(",
    r"^\s*(import|from) pickle\b",
)
MAY_CATCH_ALL = ("scheduler_svc/gbnf.py", "interceptors.py", "__main__.py")


def walk() -> Iterator[tuple[str, ast.AST]]:
    for path, tree in sources().items():
        for node in ast.walk(tree):
            yield path, node


def test_every_module_says_what_it_owns() -> None:
    silent = [p for p, tree in sources().items() if tree.body and not ast.get_docstring(tree)]
    assert not silent


def test_files_and_functions_stay_small() -> None:
    long = [p for p in sources() if text_of(p).count("\n") > FILE_LINES]
    for path, node in walk():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES:
                long.append(f"{path}: {node.name} has {lines} lines")
    assert not long


def test_nothing_catches_everything_but_the_edges() -> None:
    broad = []
    for path, node in walk():
        if not isinstance(node, ast.ExceptHandler) or path.endswith(MAY_CATCH_ALL):
            continue
        caught = ast.unparse(node.type) if node.type else "everything"
        if re.search(r"\b(Exception|BaseException|everything)\b", caught):
            broad.append(f"{path}:{node.lineno}")
    assert not broad


def test_no_unsafe_loading_and_nothing_left_to_do() -> None:
    found = [
        f"{path}: {pattern}"
        for path in sources()
        for pattern in FORBIDDEN_TEXT
        if re.search(pattern, text_of(path), re.MULTILINE)
    ]
    assert not found


def test_the_field_s_names_and_no_others() -> None:
    found = set()
    for path, node in walk():
        names = [getattr(node, key, None) for key in ("id", "attr", "arg", "name")]
        found |= {
            f"{path}: {name}" for name in names if isinstance(name, str) and name.lower() in FORBIDDEN_NAMES
        }
    assert not found

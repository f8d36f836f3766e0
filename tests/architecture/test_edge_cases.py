"""docs/edge-cases.md names tests that exist, and a test for every edge case."""

import ast
import re
from functools import cache

from tests.architecture.sources import REPOSITORY

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (REPOSITORY / "docs" / "edge-cases.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("|")
][2:]


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_edge_case_has_a_test_that_exists() -> None:
    assert len(ROWS) >= 19
    for case, shown in ROWS:
        named = re.findall(r"`([^`]+)`", shown)
        assert named, f"no test: {case}"
        for name in named:
            path, _, function = name.partition("::")
            assert (REPOSITORY / path).is_file(), name
            assert not function or function in functions(path), name


def test_each_edge_case_is_listed_once() -> None:
    cases = [case for case, _ in ROWS]
    assert len(set(cases)) == len(cases)

"""The repository's own Python sources, for tests that read them.

Owns the list of rooms and the parsing; knows no rule. Invariant: generated code is never among them.
"""

import ast
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ROOMS = ("protos/octavo", "kernels/paged_kernels", "scheduler_svc", "gpu_worker", "octavo_client", "gateway")
ROOTS = {"octavo": "protos", "paged_kernels": "kernels"}


@cache
def sources() -> dict[str, ast.Module]:
    """Relative path to syntax tree of every source of a room."""
    paths = [p for room in ROOMS for p in sorted((REPOSITORY / room).rglob("*.py")) if "_pb2" not in p.name]
    return {str(p.relative_to(REPOSITORY)): ast.parse(p.read_text(encoding="utf-8")) for p in paths}


def text_of(path: str) -> str:
    return (REPOSITORY / path).read_text(encoding="utf-8")


def modules_of(package: str) -> list[str]:
    """Dotted names of all modules of a package but its __main__."""
    root = REPOSITORY / ROOTS.get(package.split(".")[0], "")
    paths = sorted((root / package.replace(".", "/")).rglob("*.py"))
    names = [".".join(p.relative_to(root).with_suffix("").parts) for p in paths]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]

"""Who may import whom: the contracts of pyproject.toml, and what a running process really has in memory."""

import importlib.metadata
import subprocess
import sys

import pytest

from tests.architecture.sources import REPOSITORY, modules_of

HEAVY = ("torch", "transformers", "triton", "gpu_worker", "paged_kernels")
NOT_IN_CORE = (
    "grpc",
    "google.protobuf",
    "octavo",
    "tokenizers",
    "prometheus_client",
    "pydantic_settings",
    "jinja2",
)
NOT_IN_CLIENT = ("torch", "transformers", "scheduler_svc", "gpu_worker", "paged_kernels", "tokenizers")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


def test_the_import_contracts_hold() -> None:
    """Without its cache, which another run may be writing."""
    done = run("-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("scheduler_svc", HEAVY),
        ("scheduler_svc.core", NOT_IN_CORE),
        ("octavo_client", NOT_IN_CLIENT),
        ("gateway", NOT_IN_CLIENT),
    ],
)
def test_a_process_that_imports_all_of_it_never_loads(package: str, forbidden: tuple[str, ...]) -> None:
    for heavy in ("torch", "transformers"):
        importlib.metadata.version(heavy)  # the test shows something only where they are installed
    modules = modules_of(package)
    assert modules, package
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {modules!r}]; "
        f"print(sorted(set(sys.modules) & set({forbidden!r})))"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"

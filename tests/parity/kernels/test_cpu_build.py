"""Compiling the CPU kernels: the cache, machines without a compiler, compilers that fail.

Owns stand-in compilers written as shell scripts; compiles nothing itself. Invariant: the cache of the user is
not touched.
"""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paged_kernels import dispatch, kernel_cache, torch_impl
from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.cpu_impl import build, library

VERSION = 'if [ "$1" = --version ]; then echo "stub 1.0"; exit 0; fi; '
WORKS = VERSION + 'for last; do :; done; echo "$$" > "$last"'
NO_COMPILER = f"{__file__}.absent"
FAILS = VERSION + 'echo "x.cpp:1: error: no such flag" >&2; exit 1'


def stub(folder: Path, text: str) -> str:
    path = folder / "stub-c++"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(kernel_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def unloaded() -> object:
    """Forgets the loaded library for one test, then once more, so that no test sees a stand-in."""
    library.outcome.cache_clear()
    yield
    library.outcome.cache_clear()


def test_compiled_once_then_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", stub(tmp_path, WORKS))
    first, origin = build.native_library()
    written = first.read_text()
    second, _ = build.native_library()
    assert first == second
    assert second.read_text() == written
    assert "stub 1.0" in origin
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_another_compiler_or_processor_gets_its_own_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", stub(tmp_path, WORKS))
    first, _ = build.native_library()
    monkeypatch.setattr(build, "_processor", lambda: "another")
    second, _ = build.native_library()
    monkeypatch.setenv("CXX", stub(tmp_path, WORKS.replace("1.0", "1.1")))
    third, _ = build.native_library()
    assert len({first, second, third}) == 3


def test_a_compiler_that_fails_is_asked_once_and_a_folder_that_is_none_never(
    tmp_path: Path, own_cache: Path, unloaded: object, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    asked = tmp_path / "asked"
    monkeypatch.setenv("CXX", stub(tmp_path, VERSION + f'echo . >> {asked}; echo "error: no" >&2; exit 1'))
    for _ in range(3):
        with pytest.raises(BackendUnavailableError, match="cannot compile the CPU kernels: error: no"):
            library.load()
    assert asked.read_text() == ".\n"
    library.outcome.cache_clear()
    caplog.clear()
    caplog.set_level(logging.INFO)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(kernel_cache.CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(BackendUnavailableError, match="cannot be written"):
        library.load()
    assert "compiling" not in caplog.text


def test_two_processes_at_once_leave_one_whole_library(tmp_path: Path, own_cache: Path) -> None:
    slow = WORKS.replace("for last", "sleep 0.3; for last")
    code = "from paged_kernels.cpu_impl.build import native_library; print(native_library()[0].read_text())"
    own = {"CXX": stub(tmp_path, slow), kernel_cache.CACHE_VARIABLE: str(own_cache)}
    env = os.environ | own | {"PYTHONPATH": ":".join(sys.path)}
    children = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) for _ in range(2)
    ]
    outputs = [child.communicate(timeout=100)[0].strip() for child in children]
    assert all(output.isdigit() for output in outputs)
    assert len(list(own_cache.iterdir())) == 1


def test_without_a_compiler_auto_says_so_once_and_uses_torch(
    unloaded: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", NO_COMPILER)
    monkeypatch.setattr(dispatch, "_said", set[str]())  # another test of this process may have heard it
    with caplog.at_level(logging.WARNING):
        kernels = dispatch.select("auto", "cpu", torch.float32, 64, 16)
        dispatch.select("auto", "cpu", torch.float32, 64, 16)
    assert kernels.paged_attention is torch_impl.paged_attention
    assert all("no C++ compiler" in choice.why for choice in kernels.choices)
    assert len([record for record in caplog.records if "no C++ compiler" in record.message]) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no C\\+\\+ compiler runs .*CXX"),
        (FAILS, "stub 1.0 cannot compile.*no such flag"),
        (WORKS, "cannot be loaded"),
    ],
    ids=["none", "fails", "writes nonsense"],
)
def test_by_name_it_raises_with_the_reason(
    unloaded: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str
) -> None:
    monkeypatch.setenv("CXX", NO_COMPILER if text is None else stub(tmp_path, text))
    with pytest.raises(BackendUnavailableError, match=message):
        dispatch.select("cpu", "cpu", torch.float32, 64, 16)


@pytest.mark.parametrize("folder", ["file/cache", "n" * 300])
def test_a_cache_that_cannot_be_written_is_named(
    unloaded: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """The second cannot even be looked into, for whoever runs the tests."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(kernel_cache.CACHE_VARIABLE, str(tmp_path / folder))
    monkeypatch.setenv("CXX", stub(tmp_path, WORKS))
    with pytest.raises(BackendUnavailableError, match="cannot be written"):
        dispatch.select("cpu", "cpu", torch.float32, 64, 16)

"""Kernels compiled ahead: the level that a processor can run, and a worker without a compiler.

Owns a folder of its own; compiles one level for real. Invariant: the cache of the user is not touched.
"""

import ctypes
import platform
from pathlib import Path

import pytest

from paged_kernels import kernel_cache
from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.cpu_impl import ahead, build, library

NO_COMPILER = f"{__file__}.absent"
X86 = ahead.LEVELS["x86_64"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without a native library, on a machine without a compiler."""
    monkeypatch.setenv(kernel_cache.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv("CXX", NO_COMPILER)
    return tmp_path


def lay(folder: Path, *levels: ahead.Level) -> None:
    for level in levels:
        ahead._path(folder, level).write_bytes(b"")


@pytest.mark.parametrize("number", range(len(X86)))
def test_the_best_level_that_the_processor_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    lay(folder, *X86)
    path, origin = ahead.find(folder, X86[number].needs | {"more"})
    assert X86[number].name in path.name
    assert origin == f"compiled ahead for {X86[number].name}"


def test_a_level_whose_instructions_lack_is_never_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    lay(folder, X86[0], X86[1])
    with pytest.raises(BackendUnavailableError, match="none compiled ahead"):
        ahead.find(folder, X86[1].needs - {"avx512vl"})


def test_libraries_of_other_sources_are_not_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    lay(folder, *X86)
    monkeypatch.setattr(ahead, "source_digest", lambda: "of-other-sources")
    with pytest.raises(BackendUnavailableError, match="none compiled ahead"):
        ahead.find(folder, X86[0].needs)


def test_without_compiler_and_library_both_reasons_are_given(folder: Path) -> None:
    with pytest.raises(BackendUnavailableError, match=r"no C\+\+ compiler.*; none compiled ahead"):
        library.library_path()


def test_a_compiler_comes_first(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(folder, *ahead.LEVELS.get(platform.machine(), ()))
    compiler = tmp_path / "stub-c++"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo stub 1.0 && exit 0\nfor last; do :; done; : > "$last"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert "stub 1.0" in library.library_path()[1]


def test_a_level_compiled_here_loads_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plainest level of this machine's kind, compiled by a real compiler."""
    levels = ahead.LEVELS.get(platform.machine(), ())
    if not levels or not levels[-1].needs <= ahead.instruction_sets():
        pytest.skip(f"no level for this {platform.machine()}")
    try:
        build.find_compiler()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    monkeypatch.setenv(kernel_cache.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(ahead, "LEVELS", {platform.machine(): levels[-1:]})
    assert len(ahead.compile_all(tmp_path)) == 1
    monkeypatch.setenv("CXX", NO_COMPILER)
    path, origin = library.library_path()
    assert origin == f"compiled ahead for {levels[-1].name}"
    assert ctypes.CDLL(str(path)).octavo_lanes() >= 4

"""The shared library of the CPU kernels: compiled once by the machine's own compiler, then found in a cache.

Owns the compiler's choice and the flags; knows no tensor. Invariant: a library appears
under its name whole or not at all, and its name depends on everything that went into it.
"""

import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.kernel_cache import cache_folder

_log = logging.getLogger(__name__)
SOURCE_FOLDER = Path(__file__).parent / "source"
_COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    *("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-fno-math-errno", "-fno-trapping-math"),
)
_COMPILE_SECONDS = 300


@dataclass(frozen=True)
class Compiler:
    """A command that compiles C++, and what it says of itself."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """The compiler named by CXX, else the first of c++, g++ and clang++ that runs.

    Raises BackendUnavailableError when there is none.
    """
    named = os.environ.get("CXX")
    candidates = [tuple(shlex.split(named))] if named else [(name,) for name in _COMPILERS]
    for command in candidates:
        version = _version(command)
        if version is not None:
            return Compiler(command, version)
    wanted = f"CXX={named}" if named else ", ".join(_COMPILERS)
    raise BackendUnavailableError(f"no C++ compiler runs ({wanted}); install g++ or clang++, or set CXX")


def _version(command: tuple[str, ...]) -> str | None:
    if not command or shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    return lines[0].strip() if lines else ""


def native_library() -> tuple[Path, str]:
    """The library for this very processor and a line about its origin; compiles it where the cache does not
    hold it.

    Raises BackendUnavailableError with the compiler's first error when it cannot be compiled.
    """
    compiler = find_compiler()
    flags = (*FLAGS, _native_flag())
    path = cache_folder() / f"cpu-kernels-{_key(compiler, flags)}.so"
    if not os.path.isfile(path):  # unlike the path's own, it raises nothing where nobody may look
        compile_into(compiler, flags, path)
    return path, f"compiled by {compiler.version} with {flags[-1]}"


def _native_flag() -> str:
    return "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"


def source_digest() -> str:
    """Of the sources and of the flags that every library has."""
    digest = _sources()
    digest.update(" ".join(FLAGS).encode())
    return digest.hexdigest()[:24]


def _sources() -> "hashlib._Hash":
    digest = hashlib.sha256()
    for source in sorted(SOURCE_FOLDER.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest


def _key(compiler: Compiler, flags: tuple[str, ...]) -> str:
    digest = _sources()
    for part in (*compiler.command, compiler.version, *flags, _processor()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]


def _processor() -> str:
    """The processor's model and instruction sets: a library built for another one may not run here."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    first = text.split("\n\n", 1)[0].splitlines()
    kept = ("model name", "flags", "Features", "CPU part", "CPU implementer")
    return "\n".join(line for line in first if line.startswith(kept))


def compile_into(compiler: Compiler, flags: tuple[str, ...], path: Path) -> None:
    """Compiles into a temporary file beside the target, then renames it: two processes may do so at once.

    Raises BackendUnavailableError with the compiler's first error.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            _log.info("compiling the CPU kernels with %s, once; kept in %s", compiler.version, path.parent)
            built = Path(folder) / path.name
            command = [*compiler.command, *flags, str(SOURCE_FOLDER / "kernels.cpp"), "-o", str(built)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr[:300]]
                raise BackendUnavailableError(
                    f"{compiler.version} cannot compile the CPU kernels: {lines[0]}"
                )
            built.replace(path)
    except subprocess.TimeoutExpired as error:
        raise BackendUnavailableError(
            f"{compiler.version} took more than {_COMPILE_SECONDS} s over the CPU kernels"
        ) from error
    except OSError as error:
        raise BackendUnavailableError(
            f"the CPU kernels cannot be written to {path.parent}: {error}"
        ) from error

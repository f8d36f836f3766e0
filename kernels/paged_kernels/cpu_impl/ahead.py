"""The CPU kernels compiled ahead, for machines without a compiler: `python -m paged_kernels.cpu_impl.ahead`.

Owns the levels of processors and which of them runs here; knows no tensor. Invariant: a library is taken only
when this processor has every instruction set that it was compiled for, and it was made of these very sources.
"""

import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.cpu_impl.build import FLAGS, compile_into, find_compiler, source_digest
from paged_kernels.kernel_cache import cache_folder

_V2 = "cx16 popcnt sse4_1 sse4_2 ssse3"
_V3 = f"{_V2} avx avx2 bmi1 bmi2 f16c fma movbe"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@dataclass(frozen=True)
class Level:
    """A processor to compile for. needs: names in /proc/cpuinfo."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


def _level(name: str, flags: str, needs: str) -> Level:
    return Level(name, tuple(flags.split()), frozenset(needs.split()))


LEVELS: dict[str, tuple[Level, ...]] = {
    "x86_64": (
        _level("x86-64-v4-bf16", "-march=x86-64-v4 -mavx512bf16", f"{_V4} avx512_bf16"),
        _level("x86-64-v4", "-march=x86-64-v4", _V4),
        _level("x86-64-v3", "-march=x86-64-v3", _V3),
        _level("x86-64-v2", "-march=x86-64-v2", _V2),
    ),
    "aarch64": (_level("armv8-a", "-march=armv8-a", "asimd fp"),),
}
"""By machine, the best level first."""


def find(folder: Path, processor: frozenset[str]) -> tuple[Path, str]:
    """The best library in a folder for a processor's instruction sets, and a line about its origin.

    Raises BackendUnavailableError when none fits.
    """
    for level in LEVELS.get(platform.machine(), ()):
        path = _path(folder, level)
        if level.needs <= processor and os.path.isfile(path):
            return path, f"compiled ahead for {level.name}"
    raise BackendUnavailableError(f"none compiled ahead for this processor lies in {folder}")


def instruction_sets() -> frozenset[str]:
    """What the first processor of this machine has, as /proc/cpuinfo names it; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(line[1].split()) if line else frozenset()


def compile_all(folder: Path) -> list[Path]:
    """Compiles every level of this machine's kind. Raises BackendUnavailableError with the first failure."""
    compiler = find_compiler()
    made = []
    for level in LEVELS.get(platform.machine(), ()):
        path = _path(folder, level)
        compile_into(compiler, (*FLAGS, *level.flags), path)
        made.append(path)
    return made


def _path(folder: Path, level: Level) -> Path:
    return folder / f"cpu-kernels-{level.name}-{source_digest()}.so"


def main() -> int:
    """0: every level is in the cache folder; 1: one line on stderr says why not."""
    try:
        made = compile_all(cache_folder())
    except BackendUnavailableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in made))
    return 0 if made else 1


if __name__ == "__main__":
    sys.exit(main())

"""In what order kernels that are asked for ahead are built and compiled, without a GPU: a program, run by
test_compile_ahead.

Owns small kernels, which Triton compiles for compute capability 9.0, and what is told of each; launches
nothing. Invariant: TRITON_INTERPRET is not set and nothing is on the disk.
"""

import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import driver

from paged_kernels.triton_impl import compile_ahead
from tests.fixtures.stub_driver import StubDriver

LONGEST = 300.0
"""Seconds that a kernel waits for what others do; in vain only where something is wrong."""
FAILING = 3


# fmt: off
@triton.jit
def plain_kernel(out, number: tl.constexpr):
    tl.static_assert(number != 3)
    tl.store(out + number, number)


@gluon.jit
def gluon_kernel(out, number: gl.constexpr):
    gl.static_assert(number != 3)
    gl.store(out + number, number)
# fmt: on


class Driver(StubDriver):
    """Makes launchers of nothing."""

    def launcher_cls(self, src: object, metadata: object) -> None:
        return None


class Builds:
    """Which kernels' code is built from Python: in what order, and how many of them at a time."""

    def __init__(self, last: int) -> None:
        self.order: list[int] = []
        self.most = 0
        self.all_begun = threading.Event()
        self.all_asked = threading.Event()
        self._last = last
        self._now = 0
        self._lock = threading.Lock()

    def around(self, make_ir: Callable[..., Any]) -> Callable[..., Any]:
        def build(source: Any, *args: Any, **options: Any) -> Any:
            number = number_of(source)
            with self._lock:
                self.order.append(number)
                self._now += 1
                self.most = max(self.most, self._now)
            if number == self._last:
                self.all_begun.set()
            if number == FAILING:  # an error that is known while others are asked for is raised there
                self.all_asked.wait(LONGEST)
            time.sleep(0.01)  # long enough for another thread to begin, where it may
            try:
                return make_ir(source, *args, **options)
            finally:
                with self._lock:
                    self._now -= 1

        return build


def number_of(source: Any) -> int:
    return int(next(iter(source.constants.values())))


def told(numbers: list[int]) -> dict[str, Any]:
    """What became of kernels of these numbers, asked for one after another, Gluon's and others by turns."""
    own = {source: source.make_ir for source in (ASTSource, GluonASTSource)}
    builds, make_cubin, beside = Builds(numbers[-1]), CUDABackend.make_cubin, []

    def waiting(*args: Any) -> Any:
        beside.append(builds.all_begun.wait(LONGEST))
        return make_cubin(*args)

    result: dict[str, Any] = {"error": ""}
    for source, make_ir in own.items():
        source.make_ir = builds.around(make_ir)
    around = {source: source.make_ir for source in own}
    CUDABackend.make_cubin = waiting
    try:
        with compile_ahead.compiling(torch.device("cpu")), compile_ahead.instead_of_launching():
            result["collects"] = gc.isenabled()
            for number in numbers:
                kernel = gluon_kernel if number % 2 else plain_kernel
                kernel[(1,)](torch.empty(64, dtype=torch.int32), number)
            builds.all_asked.set()
    except triton.CompilationError as error:
        result["error"] = str(error).split("\n")[0]
    finally:
        result["left"] = [source.make_ir is not make_ir for source, make_ir in around.items()]
        CUDABackend.make_cubin = make_cubin
        for source, make_ir in own.items():
            source.make_ir = make_ir
    return result | {
        "order": builds.order,
        "most": builds.most,
        "beside": beside,
        "collects after": gc.isenabled(),
    }


if __name__ == "__main__":
    driver.set_active(Driver())
    torch.cuda.set_device = lambda device: None  # type: ignore[assignment]
    os.cpu_count = lambda: 16
    with tempfile.TemporaryDirectory() as folder:
        triton.knobs.cache.dir = folder
        results = {"all": told([10, 11, 12, 13, 14, 15])}
        gc.disable()
        results["one that fails"] = told([20, FAILING, 22, 21, 24])
    json.dump(results, sys.stdout)

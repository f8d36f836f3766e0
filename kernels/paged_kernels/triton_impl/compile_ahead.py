# mypy: disable-error-code="no-untyped-call, no-any-return"
"""Compiles Triton kernels in threads, before the launches that need them.

Owns the threads, their order and the mode in which a launch asks for its kernel and computes nothing; knows
no kernel: what is compiled is what code launches in that mode. Invariant: behind `compiling` every kernel
that was asked for is compiled and its launcher made, or the first error of one was raised.
"""

import gc
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import driver
from triton.runtime.jit import JITFunction

_MOST_THREADS = 32


@contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """Inside, what is asked for `instead_of_launching` compiles in threads; nothing may be launched.

    Triton's passes, ptxas and the C compiler that makes launchers all run without the interpreter's lock, so
    that as many kernels compile at a time as there are processors. What they take is built in Python before,
    for one kernel at a time, as they are asked for: threads that share the lock would all be ready as late as
    the last, and the kernel that takes longest from there on would start then. Garbage is left until the end:
    collecting took a tenth of the time in Python.
    """
    count = min(_MOST_THREADS, os.cpu_count() or 1)
    threads = ThreadPoolExecutor(count, "compile", torch.cuda.set_device, (device,))
    launchable = _Launchable(threads)
    with (
        _no_collections(),
        _after_each_build(launchable.built),
        threads,
        triton.AsyncCompileMode(launchable),
    ):
        yield


@contextmanager
def instead_of_launching() -> Iterator[None]:
    """Inside, every launch of a Triton kernel of this process asks for its kernel and computes nothing.

    Results hold whatever their memory held. Needs `compiling` around it, and no other thread that launches.
    """
    launch = JITFunction.run

    def ask(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = launch(self, *args, grid=grid, warmup=True, **options)
        future = getattr(kernel, "future", None)
        if future is not None and future.done():
            kernel.result()  # from now on asking for it again is a look-up
        return kernel

    JITFunction.run = ask
    try:
        yield
    finally:
        JITFunction.run = launch


@contextmanager
def _after_each_build(built: Callable[[], None]) -> Iterator[None]:
    """Inside, Triton calls this behind the code that it builds from Python, in the thread that builds."""
    own = {source: source.make_ir for source in (ASTSource, GluonASTSource)}

    def followed(make_ir: Callable[..., Any]) -> Callable[..., Any]:
        def build(*args: Any, **options: Any) -> Any:
            code = make_ir(*args, **options)
            built()
            return code

        return build

    for source, make_ir in own.items():
        source.make_ir = followed(make_ir)
    try:
        yield
    finally:
        for source, make_ir in own.items():
            source.make_ir = make_ir


@contextmanager
def _no_collections() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Launchable(Executor):
    """Threads that build one kernel after another, as they were asked for, and also make the launcher.

    Kernels of one function share it: the first makes it, and all find it on the disk when they are launched.
    No launcher that was loaded here is used: Triton makes modules of one name, and of two that are loaded at
    a time one can be taken for the other.
    """

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._last_built = threading.Event()
        self._last_built.set()
        self._here = threading.local()

    def submit(self, compile: Callable[[], Any]) -> Future[Any]:  # type: ignore[override]
        before, self._last_built = self._last_built, threading.Event()
        return self._threads.submit(self._launchable, compile, before, self._last_built)

    def built(self) -> None:
        """The kernel that this thread compiles, if any, needs the interpreter no more: the next may begin."""
        if (event := getattr(self._here, "built", None)) is not None:
            event.set()

    def _launchable(self, compile: Callable[[], Any], before: threading.Event, built: threading.Event) -> Any:
        before.wait()
        self._here.built = built
        try:
            kernel = compile()
        finally:
            built.set()
        with self._locks[kernel.name]:
            driver.active.launcher_cls(kernel.src, kernel.metadata)
        return kernel

# mypy: disable-error-code="no-untyped-call"
"""Compiles Triton kernels in threads, before the launches that need them.

Owns the threads and the mode in which a launch asks for its kernel and computes nothing; knows no kernel:
what is compiled is what code launches in that mode. Invariant: behind `compiling` every kernel that was asked
for is compiled and its launcher made, or the first error of one was raised.
"""

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.runtime import driver
from triton.runtime.jit import JITFunction

_MOST_THREADS = 32


@contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """Inside, what is asked for `instead_of_launching` compiles in threads; nothing may be launched.

    Triton's passes, ptxas and the C compiler that makes launchers all run without the interpreter's lock, so
    that as many kernels compile at a time as there are processors.
    """
    count = min(_MOST_THREADS, os.cpu_count() or 1)
    threads = ThreadPoolExecutor(count, "compile", torch.cuda.set_device, (device,))
    with threads, triton.AsyncCompileMode(_Launchable(threads)):
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


class _Launchable(Executor):
    """Threads that also make the launcher of what they compile.

    Kernels of one function share it: the first makes it, and all find it on the disk when they are launched.
    No launcher that was loaded here is used: Triton makes modules of one name, and of two that are loaded at
    a time one can be taken for the other.
    """

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def submit(self, compile: Callable[[], Any]) -> Future[Any]:  # type: ignore[override]
        return self._threads.submit(self._launchable, compile)

    def _launchable(self, compile: Callable[[], Any]) -> Any:
        kernel = compile()
        with self._locks[kernel.name]:
            driver.active.launcher_cls(kernel.src, kernel.metadata)
        return kernel

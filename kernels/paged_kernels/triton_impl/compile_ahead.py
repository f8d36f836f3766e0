# mypy: disable-error-code="no-untyped-call"
"""Compiles Triton kernels in threads, before the launches that need them.

Owns the threads and the mode in which a launch asks for its kernel and computes nothing; knows no kernel:
what is compiled is what code launches in that mode. Invariant: behind `compiling` every kernel that was asked
for is compiled and loaded, or the first error of one was raised.
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
from triton.runtime.jit import JITFunction

_MOST_THREADS = 32


@contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """Inside, kernels that are not compiled yet compile in threads; a real launch of one waits for it.

    Triton's passes, ptxas and the C compiler that makes launchers all run without the interpreter's lock, so
    that as many kernels compile at a time as there are processors.
    """
    count = min(_MOST_THREADS, os.cpu_count() or 1)
    threads = ThreadPoolExecutor(count, "compile", torch.cuda.set_device, (device,))
    with threads, triton.AsyncCompileMode(_Loading(threads)):
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


class _Loading(Executor):
    """Threads that also load what they compile. Kernels of one function share a launcher, which the first
    of them makes.
    """

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def submit(self, compile: Callable[[], Any]) -> Future[Any]:  # type: ignore[override]
        return self._threads.submit(self._loaded, compile)

    def _loaded(self, compile: Callable[[], Any]) -> Any:
        kernel = compile()
        with self._locks[kernel.name]:
            assert kernel.run is not None  # makes the launcher and loads the binary
        return kernel

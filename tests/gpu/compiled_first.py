"""Kernels of a test compile in threads before it runs.

Owns the two passes; knows no kernel. Invariant: the first pass launches nothing, so its results mean nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from paged_kernels.dispatch import Kernels
from paged_kernels.testing import Batch

T = TypeVar("T")


def compiled_first(run: Callable[[], T]) -> T:
    """What `run` gives once every kernel that it launches is compiled. It must not index with results."""
    from paged_kernels.triton_impl import compile_ahead

    with compile_ahead.compiling(_here()), compile_ahead.instead_of_launching():
        run()
    return run()


def compile_for(cases: Iterable[tuple[Kernels, Batch]]) -> None:
    """Compiles what testing.judge launches on these batches."""
    from paged_kernels.triton_impl import compile_ahead

    with compile_ahead.compiling(_here()), compile_ahead.instead_of_launching():
        for kernels, batch in cases:
            kernels.store_kvcache(*batch.store_args)
            attend: Any = kernels.paged_attention
            attend(*batch.attention_args, **batch.attention_options)


def _here() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())

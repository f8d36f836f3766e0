"""The Triton kernels of a start compile beside what else a start does.

Owns which runners have any; knows no kernel. Invariant: what compiles is what the runner's own first steps
and graphs launch.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from gpu_worker.model_runner import ModelRunner


@contextmanager
def compiling_kernels(runner: ModelRunner, captured: bool) -> Iterator[None]:
    """Inside, the kernels of `warm_up` and, where captured, of `capture_graphs` compile in threads.

    At its end they are there. Raises what Triton raises. Nothing happens without fused kernels or CUDA.
    """
    device = runner.device.torch_device
    if runner.fused is None or device.type != "cuda":
        yield
        return
    from paged_kernels.triton_impl import compile_ahead

    with compile_ahead.compiling(device):
        with compile_ahead.instead_of_launching():
            runner.rehearse(captured)
        yield

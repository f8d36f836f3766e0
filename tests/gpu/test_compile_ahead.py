"""A start's kernels compile in threads, all of them, on a CUDA device.

Owns the count of compilations; knows no service. Invariant: no kernel is left in memory from tests before.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paged_kernels import triton_impl
from tests.fixtures.graph_cases import all_outputs
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import make_runner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
SHAPE = TinyShape("qwen3", seed=8, layers=3, hidden=512, heads=8, kv_heads=4, head_dim=64, intermediate=1024)
SIZES = {"max_batch_tokens": 300, "max_batch_seqs": 40, "max_model_len": 64}


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """Names of what is compiled, or read from the disk, from here on."""
    import triton
    from triton.runtime.jit import JITFunction

    for module in pkgutil.iter_modules(triton_impl.__path__):
        names = vars(importlib.import_module(f"{triton_impl.__name__}.{module.name}")).values()
        for kernel in [one for one in names if isinstance(one, JITFunction)]:
            kernel.device_caches.clear()
    seen: list[str] = []
    triton.knobs.runtime.jit_post_compile_hook = lambda **told: seen.append(told["fn"].name)
    yield seen
    triton.knobs.runtime.jit_post_compile_hook = None


def test_first_steps_and_graphs_find_every_kernel_compiled(compilations: list[str], tmp_path: Path) -> None:
    """make_runner goes through a start on launches that only ask for their kernels."""
    folder = write_tiny_model(tmp_path, SHAPE)
    made = make_runner(folder, "bfloat16", on="cuda", **SIZES)
    assert len(compilations) > 20
    compilations.clear()
    made.warm_up()
    made.capture_graphs()
    assert compilations == []
    plain = make_runner(folder, "bfloat16", on="cuda", **SIZES)
    plain.capture_graphs(captured=False)
    assert all_outputs(made, 5) == all_outputs(plain, 5)

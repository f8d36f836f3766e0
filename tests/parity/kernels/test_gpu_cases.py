"""The drawn shapes of tests/gpu cover what is promised: each dtype with every head size, block size, group.

Owns that count; runs no kernel. Invariant: the seeds are those of the tests on the device.
"""

import pytest
import torch

from paged_kernels.testing import GPU_BLOCK_SIZES, GPU_DTYPES, Shape, gpu_cases, gpu_fp8_cases
from tests.gpu import test_fp8, test_triton_parity

CASES = {
    "pools of 16 and 32 bits": gpu_cases(*test_triton_parity.DRAWN),
    "8-bit pools": gpu_fp8_cases(*test_fp8.DRAWN),
}


@pytest.mark.parametrize("kind", CASES)
def test_every_dtype_meets_every_size(kind: str) -> None:
    shapes: list[tuple[Shape, torch.dtype]] = [(shape, dtype) for shape, dtype, _ in CASES[kind]]
    for dtype in GPU_DTYPES:
        mine = [shape for shape, other in shapes if other == dtype]
        assert {shape.head_dim for shape in mine} >= {64, 80, 96, 128, 256}
        assert {shape.block_size for shape in mine} == set(GPU_BLOCK_SIZES)
        assert {shape.group for shape in mine} == set(range(1, 17))
        assert any(shape.window for shape in mine)
        assert any(shape.softcap for shape in mine)
    assert {min(GPU_BLOCK_SIZES), max(GPU_BLOCK_SIZES)} == {1, 4096}
    assert any(queries > 1 for shape, _ in shapes for queries, _ in shape.rows)
    assert any(context > 2000 for shape, _ in shapes for _, context in shape.rows), "long enough to be split"

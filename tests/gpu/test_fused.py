"""The fused Triton kernels against float64 references on a CUDA device, at the shapes of real models.

Owns the shapes; knows no service. Invariant: outputs and unused slots are NaN before each case.
"""

import pytest
import torch

from tests.fixtures.fused_cases import fused_errors, sampling_mismatches, step_input_mismatches

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
HEADS = ((16, 8, 128), (32, 8, 128), (9, 3, 64), (5, 1, 80), (4, 4, 96), (8, 2, 256))
SIZES = (
    (1, 1024, 2048),
    (3, 1024, 3072),
    (4, 3072, 512),
    (2, 2048, 512),
    (31, 3072, 512),
    (17, 1024, 3072),
    (47, 2048, 512),
    (200, 80, 96),
)
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1.5e-3, torch.float32: 3e-6}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_fused_kernels_equal_their_references(dtype: torch.dtype) -> None:
    sizes = SIZES if dtype != torch.float32 else SIZES[:2]
    errors = fused_errors("cuda", dtype, HEADS, sizes)
    assert len(errors) > 20
    assert not {name: error for name, error in errors.items() if not error < TOLERANCE[dtype]}


@pytest.mark.parametrize("vocab", [151936, 50257, 384])
def test_drawn_tokens_are_the_reference_sampler_s(vocab: int) -> None:
    assert sampling_mismatches("cuda", samples=70, vocab=vocab) == []


def test_step_inputs() -> None:
    assert step_input_mismatches("cuda") == []

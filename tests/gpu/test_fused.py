"""The fused Triton kernels against float64 references on a CUDA device, at the shapes of real models.

Owns the shapes; knows no service. Invariant: outputs and unused slots are NaN before each case.
"""

import pytest
import torch

from paged_kernels.testing import relative_error
from paged_kernels.triton_impl import fused_linear
from tests.fixtures.expert_cases import expert_errors
from tests.fixtures.fused_cases import fused_errors, step_input_mismatches
from tests.fixtures.part_cases import part_errors
from tests.fixtures.sampling_cases import filter_mismatches, likelihood_errors, sampling_mismatches
from tests.fixtures.stream_cases import stream_errors
from tests.gpu.compiled_first import compiled_first

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
    errors = compiled_first(lambda: fused_errors("cuda", dtype, HEADS, sizes))
    assert len(errors) > 20
    assert not {name: error for name, error in errors.items() if not error < TOLERANCE[dtype]}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_readers_of_products_in_parts_equal_their_references(dtype: torch.dtype) -> None:
    errors = compiled_first(lambda: part_errors("cuda", dtype))
    assert len(errors) == 20
    assert not {name: error for name, error in errors.items() if not error < TOLERANCE[dtype]}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_mixtures_of_experts_equal_their_reference(dtype: torch.dtype) -> None:
    errors = expert_errors("cuda", dtype)
    assert not {name: error for name, error in errors.items() if not error < TOLERANCE[dtype]}


on_hopper = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="cut only on Hopper"
)


@on_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_streamed_products_equal_float64(dtype: torch.dtype) -> None:
    errors = compiled_first(lambda: stream_errors("cuda", dtype))
    assert len(errors) == 48
    assert not {name: error for name, error in errors.items() if not error < TOLERANCE[dtype]}


@on_hopper
@pytest.mark.parametrize("tokens", [1, 3, 16, 17, 32, 48, 64, 65, 96, 128, 192, 256])
def test_small_products_equal_float64(tokens: int) -> None:
    """With the weights of Qwen3-0.6B: qkv, out, gate and up, down."""
    generator = torch.Generator().manual_seed(tokens)
    for inside, outside in ((1024, 4096), (2048, 1024), (1024, 6144), (3072, 1024)):
        x = torch.randn((tokens, inside), generator=generator).bfloat16().cuda()
        weight = torch.randn((outside, inside), generator=generator).bfloat16().cuda() / inside**0.5
        parts = fused_linear.linear(x, weight)
        assert parts.dim() == 3
        wanted = x.double() @ weight.double().T
        error = relative_error(parts.double().sum(0), wanted)
        assert error < (1e-5 if parts.shape[0] > 1 else 5e-3)
        assert torch.equal(fused_linear.linear(x, weight), parts)
        gated, half = fused_linear.gated_linear(x, weight), outside // 2
        expected = torch.nn.functional.silu(wanted[:, :half]) * wanted[:, half:]
        assert relative_error(gated, expected) < 1e-2
        assert torch.equal(fused_linear.gated_linear(x, weight), gated)


@on_hopper
@pytest.mark.parametrize("tokens", [1, 7, 16, 33, 64, 100, 128, 129])
@pytest.mark.parametrize(
    ("inside", "outside"), [(4096, 6144), (14336, 4096), (4096, 28672), (2560, 19456), (4104, 4104)]
)
def test_large_products_equal_float64(tokens: int, inside: int, outside: int) -> None:
    """With the weights of Llama-3.1-8B, and with sizes that no shape divides."""
    generator = torch.Generator(device="cuda").manual_seed(tokens)
    x = torch.randn((tokens, inside), generator=generator, device="cuda").bfloat16()
    weight = torch.randn((outside, inside), generator=generator, device="cuda").bfloat16() / inside**0.5
    parts = fused_linear.linear(x, weight).view(-1, tokens, outside)
    wanted = x.double() @ weight.double().T
    assert relative_error(parts.double().sum(0), wanted) < 5e-3
    gated = fused_linear.gated_linear(x, weight)
    assert gated.shape == (tokens, outside // 2)
    half = outside // 2
    error = relative_error(gated, torch.nn.functional.silu(wanted[:, :half]) * wanted[:, half:])
    assert error < 1e-2
    assert torch.equal(fused_linear.gated_linear(x, weight), gated)


def test_likelihoods_are_those_of_float64() -> None:
    assert max(likelihood_errors("cuda").values()) < 2e-13


@pytest.mark.parametrize("vocab", [151936, 50257, 384])
def test_drawn_tokens_are_the_reference_sampler_s(vocab: int) -> None:
    assert sampling_mismatches("cuda", samples=70, vocab=vocab) == []


@pytest.mark.parametrize("vocab", [151936, 50257, 49152, 384])
def test_filtered_tokens_are_the_reference_sampler_s(vocab: int) -> None:
    for seed in range(6):
        assert filter_mismatches("cuda", samples=100, vocab=vocab, seed=seed) == []


def test_step_inputs() -> None:
    assert step_input_mismatches("cuda") == []

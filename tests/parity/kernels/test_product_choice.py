"""Which products are cut into parts: by tokens and sizes, and only where the copy engine can read them."""

import pytest
import torch

from paged_kernels.triton_impl import fused_linear, machine, split_linear
from paged_kernels.triton_impl.split_linear import Shape

SMALL = {"qkv": (1024, 4096), "out": (2048, 1024), "gate_up": (1024, 6144), "down": (3072, 1024)}
LARGE = {"qkv": (4096, 6144), "out": (4096, 4096), "gate_up": (4096, 28672), "down": (14336, 4096)}


@pytest.mark.parametrize("tokens", [3, 16, 17, 33, 64, 65, 128, 129, 256])
def test_weights_that_fit_the_multiprocessors_are_cut_and_large_ones_are_not(tokens: int) -> None:
    for name, (inside, outside) in SMALL.items():
        shape = fused_linear.shape_for(tokens, inside, outside)
        if name == "gate_up" and tokens > 128:
            assert shape is None
            continue
        assert shape is not None
        assert split_linear.fits(shape, inside, outside)
        assert shape.block_t >= min(tokens, 128)
    assert not any(fused_linear.shape_for(tokens, *weight) for weight in LARGE.values())


def test_more_tokens_and_sizes_that_no_shape_divides_take_the_library() -> None:
    assert fused_linear.shape_for(257, *SMALL["out"]) is None
    assert fused_linear.shape_for(8, 576, 960) is None
    assert fused_linear.shape_for(8, 1024, 1000) is None


def test_parts_are_asked_of_a_16_bit_hopper_and_of_aligned_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def record(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Shape
    ) -> torch.Tensor:
        taken.append(shape)
        return x

    monkeypatch.setattr(split_linear, "split_linear", record)
    weight, x = torch.zeros((64, 512), dtype=torch.bfloat16), torch.zeros((4, 512), dtype=torch.bfloat16)
    assert fused_linear.linear(x, weight).shape == (4, 64)
    monkeypatch.setattr(machine, "capability", lambda _device: (9, 0))
    fused_linear.linear(x.float(), weight.float())
    fused_linear.linear(torch.zeros((4, 517), dtype=torch.bfloat16)[:, :512], weight)
    fused_linear.linear(torch.zeros(4 * 512 + 1, dtype=torch.bfloat16)[1:].view(4, 512), weight)
    assert not taken
    fused_linear.linear(x, weight)
    assert taken == [fused_linear.shape_for(4, 512, 64)]

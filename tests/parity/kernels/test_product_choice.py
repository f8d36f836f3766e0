"""Which products are cut into parts: by tokens and sizes, and only where the copy engine can read them."""

import pytest
import torch

from paged_kernels.triton_impl import fused_linear, machine, norms, split_linear, stream_linear
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


@pytest.mark.parametrize("tokens", [1, 16, 17, 33, 64, 65, 128])
def test_large_weights_are_streamed_in_equal_shares_of_all_multiprocessors(tokens: int) -> None:
    programs = {}
    for name, (inside, outside) in LARGE.items():
        stream = fused_linear.stream_for(tokens, inside, outside, name == "gate_up", 132)
        if stream is None:
            assert (name, tokens > 64) == ("qkv", True)
            continue
        assert stream_linear.fits(stream, inside, outside)
        assert tokens <= stream.block_t < max(17, 2 * tokens)
        assert stream.stages(inside) >= 3
        programs[name] = outside // (stream.rows * (1 + stream.gated)) * stream.parts
    gated = 112 if tokens <= 32 else 224
    expected = {"out": 128, "gate_up": gated, "down": 128}
    assert programs == (expected if tokens > 64 else expected | {"qkv": 96})


def test_small_and_uneven_weights_and_more_tokens_are_not_streamed() -> None:
    for name, weight in SMALL.items():
        assert fused_linear.stream_for(8, *weight, name == "gate_up", 132) is None
    for name, weight in LARGE.items():
        assert fused_linear.stream_for(129, *weight, name == "gate_up", 132) is None
    assert fused_linear.stream_for(8, 4096, 28672, True, 160) is None  # 48 of 160 would have nothing
    assert fused_linear.stream_for(8, 4104, 4096, False, 132) is None
    assert fused_linear.stream_for(8, 4096, 4104, False, 132) is None


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


def test_streams_are_asked_of_a_16_bit_hopper_and_gated_ones_without_a_bias(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = []

    def record(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stream: stream_linear.Stream
    ) -> torch.Tensor:
        taken.append(stream)
        return x.new_zeros((1, 3, weight.shape[0] // (1 + stream.gated)))

    monkeypatch.setattr(stream_linear, "stream_linear", record)
    monkeypatch.setattr(norms, "silu_mul", lambda product, _dtype: product[..., : product.shape[-1] // 2])
    monkeypatch.setattr(machine, "units", lambda _device: 32)
    weight, bias = torch.zeros((8192, 1152), dtype=torch.bfloat16), torch.zeros(8192, dtype=torch.bfloat16)
    x = torch.zeros((3, 1152), dtype=torch.bfloat16)
    assert fused_linear.gated_linear(x, weight).shape == (3, 4096)
    assert not taken
    monkeypatch.setattr(machine, "capability", lambda _device: (9, 0))
    fused_linear.gated_linear(x.float(), weight.float())
    assert not taken
    assert fused_linear.gated_linear(x, weight).shape == (3, 4096)
    assert [stream.gated for stream in taken] == [True]
    assert fused_linear.gated_linear(x, weight, bias).shape == (3, 4096)
    assert [stream.gated for stream in taken] == [True]

"""Which products are streamed: by tokens and sizes, and only where the copy engine can read them."""

import pytest
import torch

from paged_kernels.triton_impl import fused_linear, machine, norms, stream_linear

SMALL = {"qkv": (1024, 4096), "out": (2048, 1024), "gate_up": (1024, 6144), "down": (3072, 1024)}
LARGE = {"qkv": (4096, 6144), "out": (4096, 4096), "gate_up": (4096, 28672), "down": (14336, 4096)}


@pytest.mark.parametrize("tokens", [1, 16, 17, 33, 64, 65, 128, 129, 256])
def test_small_weights_are_streamed_in_equal_parts_by_half_the_multiprocessors_or_more(tokens: int) -> None:
    found = {}
    for name, (inside, outside) in SMALL.items():
        stream = fused_linear.stream_for(tokens, inside, outside, name == "gate_up", 132)
        assert stream is not None
        assert stream_linear.fits(stream, inside, outside)
        assert inside % (stream.parts * stream.block_k) == 0
        assert stream.stages(inside) >= min(4, inside // stream.block_k // stream.parts)
        programs = outside // (stream.rows * (1 + stream.gated)) * stream.parts
        found[name] = stream.parts, programs * -(-tokens // stream.block_t)
    parts = {"out": (2, 64), "down": (3, 96)} if tokens > 128 else {"out": (4, 64), "down": (6, 96)}
    assert found == {"qkv": (1, 128 if tokens > 128 else 64), "gate_up": (1, 96)} | parts


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


def test_uneven_weights_and_more_tokens_are_not_streamed() -> None:
    for name, weight in SMALL.items():
        assert fused_linear.stream_for(257, *weight, name == "gate_up", 132) is None
    assert fused_linear.stream_for(8, 1024, 1000, False, 132) is None
    assert fused_linear.stream_for(8, 1000, 1024, False, 132) is None
    assert fused_linear.stream_for(8, 1024, 2 * 1040, True, 132) is None
    for name, weight in LARGE.items():
        assert fused_linear.stream_for(129, *weight, name == "gate_up", 132) is None
    assert fused_linear.stream_for(8, 4096, 28672, True, 160) is None  # 48 of 160 would have nothing
    assert fused_linear.stream_for(8, 4104, 4096, False, 132) is None
    assert fused_linear.stream_for(8, 4096, 4104, False, 132) is None


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
    fused_linear.linear(torch.zeros((3, 1157), dtype=torch.bfloat16)[:, :1152], weight)
    fused_linear.linear(torch.zeros(3 * 1152 + 1, dtype=torch.bfloat16)[1:].view(3, 1152), weight)
    assert not taken
    assert fused_linear.gated_linear(x, weight).shape == (3, 4096)
    assert [stream.gated for stream in taken] == [True]
    assert fused_linear.gated_linear(x, weight, bias).shape == (3, 4096)
    assert [stream.gated for stream in taken] == [True]

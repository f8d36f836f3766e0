"""Packed weights and their products against float64, in every format.

Owns drawn shapes and the errors allowed to each format; knows no model. Invariant: the same row gives the
same bits alone and in any crowd.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_kernels.contracts import ArgumentError, ShapeError
from paged_kernels.cpu_impl import library
from paged_kernels.cpu_impl.linear import FORMATS, linear, pack, pack_exactly

torch.set_num_threads(1)
# Relative error against float64 on weights of normal distribution; bfloat16 with inputs rounded the same way.
ALLOWED = {"float32": 2e-6, "bfloat16": 2e-6, "int8": 1.2e-2, "int4": 1.2e-1}


@pytest.fixture(autouse=True, scope="module")
def two_threads() -> None:
    library.load().set_threads(2)


@settings(max_examples=80, deadline=None)
@given(
    format_name=st.sampled_from(sorted(FORMATS)),
    rows=st.integers(1, 40),
    outputs=st.integers(1, 120),
    inputs=st.integers(1, 200),
    seed=st.integers(0, 2**32),
    with_bias=st.booleans(),
)
def test_a_product_is_close_and_each_row_has_its_own_bits(
    format_name: str, rows: int, outputs: int, inputs: int, seed: int, with_bias: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator)
    x = torch.randn(rows, inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator) if with_bias else None
    if format_name == "bfloat16":
        weight, x = weight.bfloat16(), x.bfloat16()
    packed = pack(weight, format_name, bias)
    result = linear(x, packed)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    terms = x.double().norm(dim=1)[:, None] * weight.double().norm(dim=1)
    scale = (
        terms + (0 if bias is None else bias.double().abs())
    ).norm()  # a sum is rounded at its largest term
    assert (result - exact).norm() <= ALLOWED[format_name] * scale
    for row in range(rows):
        assert linear(x[row : row + 1], packed)[0].equal(result[row])


@pytest.mark.parametrize(("format_name", "levels", "shift"), [("int8", 127, 0), ("int4", 15, 8)])
def test_weights_on_the_grid_come_through_exactly(format_name: str, levels: int, shift: int) -> None:
    """As a GGUF file's Q8_0 and Q4_1 weights: whole numbers times a half, plus a half."""
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randint(
        -levels if format_name == "int8" else 0, levels + 1, (40, 3, 32), generator=generator
    )
    numbers[..., 0], numbers[..., 1] = 0, levels
    scale = (torch.rand(40, 3, 1, generator=generator) + 0.1).half().float() / 64
    weight = (numbers * scale - shift * scale).reshape(40, 96)
    packed = pack(weight, format_name)
    assert linear(torch.eye(96), packed).T.sub(weight).abs().max() <= 1e-3 * scale.max()


def on_grid(outputs: int, inputs: int, levels: int, seed: int) -> torch.Tensor:
    """Whole numbers times a half (plus a half for 15 levels) in groups of 32, the outermost in each group."""
    generator = torch.Generator().manual_seed(seed)
    groups = -(-inputs // 32)
    lowest = 0 if levels == 15 else -levels
    numbers = torch.randint(lowest, levels + 1, (outputs, groups, 32), generator=generator)
    numbers[..., 0], numbers[..., 1] = 0, levels
    scale = (torch.rand(outputs, groups, 1, generator=generator) + 0.1).half() / 64
    least = -8 * scale if levels == 15 else torch.zeros_like(scale)
    return (numbers * scale.float() + least.float()).reshape(outputs, -1)[:, :inputs].contiguous()


@settings(max_examples=60, deadline=None)
@given(
    levels=st.sampled_from([15, 127]),
    rows=st.integers(1, 40),
    outputs=st.integers(1, 120),
    inputs=st.integers(2, 200).filter(lambda count: count % 32 != 1),
    seed=st.integers(0, 2**32),
)
def test_bfloat16_kept_in_few_bits_gives_the_same_bits(
    levels: int, rows: int, outputs: int, inputs: int, seed: int
) -> None:
    weight = on_grid(outputs, inputs, levels, seed)
    kept = pack_exactly(weight)
    few = (library.GRID4,) if levels == 15 else (library.GRID4, library.GRID8)
    assert kept.handle.format in few
    assert kept.activation_dtype == torch.bfloat16
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed))
    assert linear(x, kept).equal(linear(x, pack(weight, "bfloat16")))


def test_bfloat16_off_the_grid_stays_whole() -> None:
    """One value of the last group that needs a bit more."""
    weight = on_grid(70, 96, 15, seed=3)
    weight[69, 95] += 2**-9
    kept = pack_exactly(weight)
    assert kept.handle.format == library.BFLOAT16
    assert linear(torch.eye(96), kept).T.equal(weight.bfloat16().float())


def test_a_row_of_zeros_and_a_constant_row() -> None:
    weight = torch.stack([torch.zeros(64), torch.full((64,), 0.5)])
    for format_name in FORMATS:
        result = linear(torch.ones(1, 64), pack(weight, format_name))
        assert result[0].tolist() == pytest.approx([0, 32], rel=1e-3)


def test_nan_in_one_row_stays_there() -> None:
    x = torch.ones(3, 64)
    x[1, 5] = torch.nan
    for format_name in FORMATS:
        result = linear(x, pack(torch.ones(20, 64), format_name))
        assert result[1].isnan().all()
        assert not result[[0, 2]].isnan().any()


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ShapeError, match="weight"):
        pack(torch.zeros(3), "float32")
    with pytest.raises(ArgumentError, match="int3"):
        pack(torch.zeros(3, 3), "int3")
    with pytest.raises(ShapeError, match="halves"):
        pack(torch.zeros(3, 3), "float32", gated=True)
    with pytest.raises(ShapeError, match="x:"):
        linear(torch.zeros(1, 4), pack(torch.zeros(3, 3), "float32"))

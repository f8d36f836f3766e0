"""The Triton kernels without a GPU: interpreted, in a process of their own, on tiny shapes.

Owns the tests of launch shapes too; knows no GPU. Invariant: this process never sets TRITON_INTERPRET.
"""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paged_kernels.testing import TOLERANCE
from paged_kernels.triton_impl import paged_attention as launch
from paged_kernels.triton_impl import tiles as tiles_of
from tests.fixtures.programs import PATIENT, told_by
from tests.parity.kernels import interpreted

pytestmark = PATIENT


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    result: dict[str, Any] = told_by("tests.parity.kernels.interpreted", interpreted=True)
    return result


@pytest.mark.parametrize("name", interpreted.SHAPES)
def test_paged_attention_equals_the_naive_reference(report: dict[str, Any], name: str) -> None:
    errors = {key: error for key, error in report["errors"].items() if key.split(" ", 1)[1] == name}
    assert errors
    for key, error in errors.items():
        assert error < TOLERANCE[interpreted.DTYPES[key.split(" ", 1)[0].removesuffix("-fp8")]], key


def test_data_movers_leave_what_the_torch_ones_leave(report: dict[str, Any]) -> None:
    assert report["mismatches"] == []


@given(n=st.integers(0, 2**31 - 1), divisor=st.integers(1, 4096))
def test_division_by_a_multiplication(n: int, divisor: int) -> None:
    magic, shift = launch.division_magic(divisor)
    for value in (n, n // divisor * divisor, max(0, n // divisor * divisor - 1)):
        assert value * magic >> shift == value // divisor
        assert value * magic < 2**63
    assert magic >= 2**31, "always a 64-bit argument, so always the same compiled kernel"


@given(
    programs=st.integers(1, 100_000), context=st.integers(0, 2**20), units=st.sampled_from([1, 40, 108, 132])
)
def test_splits_fill_the_device_and_no_more(programs: int, context: int, units: int) -> None:
    splits = launch.choose_splits(programs, context, units)
    assert 1 <= splits <= 64
    assert splits == 1 or splits * launch.MIN_SPLIT_TOKENS <= context
    assert splits == 1 or splits * programs <= 2 * units


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_tile_holds_the_group_at_every_head_dim(dtype: torch.dtype) -> None:
    for head_dim in range(1, 257):
        for group in (1, 3, 8, 16, 17, 71):
            tiles = tiles_of.choose_tiles(dtype, head_dim, group)
            assert tiles.short.block_m >= max(16, group)
            assert tiles.long.block_m >= tiles.short.block_m

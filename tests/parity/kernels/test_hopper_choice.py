"""Which calls the attention kernel of compute capability 9.0 takes, and with how many programs.

Owns the rule's tests; launches nothing. Invariant: the device is a stand-in, so they run everywhere.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from paged_kernels.triton_impl import hopper_attention, machine, paged_attention

UNITS = 132


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An H200's stand-in; which kernel every call asks for."""
    calls: list[str] = []
    monkeypatch.setattr(machine, "capability", lambda device: (9, 0))
    monkeypatch.setattr(machine, "units", lambda device: UNITS)
    monkeypatch.setattr(hopper_attention, "attend", lambda *args: calls.append("hopper"))

    def launch(self: Any, tile: Any, count: int, low: int, high: int, one_tile: bool) -> None:
        calls.append("short" if one_tile else "long")

    monkeypatch.setattr(paged_attention._Call, "launch", launch)
    return calls


def attend(rows: tuple[tuple[int, int], ...], size: tuple[int, int, int, int], **options: Any) -> None:
    """A call with these rows (new tokens, context); size: block size, KV heads, group, head_dim."""
    block_size, kv_heads, group, head_dim = size
    dtype = options.pop("dtype", torch.bfloat16)
    pool = torch.zeros((9, block_size, kv_heads, head_dim), dtype=options.pop("pool_dtype", dtype))
    if options.pop("strided", False):
        pool = torch.cat([pool, pool], 3)[..., :head_dim]
    lens = torch.tensor([0] + [queries for queries, _ in rows]).cumsum(0).int()
    contexts = torch.tensor([context for _, context in rows]).int()
    query = torch.zeros((int(lens[-1]), kv_heads * group, head_dim), dtype=dtype)
    longest = max(queries for queries, _ in rows)
    tables: Tensor = torch.zeros((len(rows), 600), dtype=torch.int32)
    paged_attention.paged_attention(
        query, pool, pool, tables, lens, contexts, head_dim**-0.5, longest, 600 * block_size, **options
    )


PROMPT = ((2048, 2048),)


def test_one_launch_takes_every_row_of_a_step_with_prompts(asked: list[str]) -> None:
    attend((*((1, 1000),) * 32, (2016, 3000)), (16, 8, 2, 128))
    assert asked == ["hopper"]


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((16, 8, 2, 80), {}),
        ((16, 8, 2, 256), {}),
        ((17, 8, 2, 128), {}),
        ((256, 8, 2, 128), {}),
        ((4, 8, 2, 128), {}),
        ((16, 8, 2, 128), {"window": 100}),
        ((16, 8, 2, 128), {"softcap": 50.0}),
        ((16, 8, 2, 128), {"dtype": torch.float32}),
        ((16, 8, 2, 128), {"strided": True}),
        ((16, 2, 65, 128), {}),
    ],
)
def test_what_it_cannot_take_goes_the_way_of_other_devices(
    size: tuple[int, int, int, int], options: dict[str, Any], asked: list[str]
) -> None:
    attend(PROMPT, size, **options)
    assert asked == ["long"]


@pytest.mark.parametrize("size", [(8, 8, 1, 64), (64, 8, 4, 128), (128, 8, 7, 64), (16, 8, 64, 128)])
def test_what_it_can_take(size: tuple[int, int, int, int], asked: list[str]) -> None:
    attend(PROMPT, size)
    attend(PROMPT, size, dtype=torch.float16)
    assert asked == ["hopper", "hopper"]


def test_decodes_and_what_needs_splits_stay(asked: list[str]) -> None:
    """A chunk of 64 tokens gives 16 programs: its context is cut, so that the device is filled."""
    attend(((1, 900),) * 40, (16, 8, 2, 128))
    attend(((64, 4000),), (16, 8, 2, 128))
    assert asked == ["short", "long"]


def test_launch_shapes_that_are_asked_for_are_those_of_the_other_kernel(asked: list[str]) -> None:
    attend(PROMPT, (16, 8, 2, 128), splits=1)
    assert asked == ["long"]


def test_programs_take_turns_while_each_has_few_tiles() -> None:
    """From eleven tiles for each on, the device hands out one after the other."""

    def programs(tokens: int, rows: int, group: int) -> int:
        query = torch.zeros((tokens, 8 * group, 64), dtype=torch.bfloat16)
        return hopper_attention._programs(query, rows, 8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "units", lambda device: UNITS)
        assert programs(2048, 16, 2) == UNITS
        assert programs(2048, 1024, 2) == UNITS
        assert programs(300, 1, 2) == (300 // 64 + 1) * 8
        assert programs(8192, 16, 4) == (8192 // 32 + 16) * 8

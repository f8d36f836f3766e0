"""A little of the million operations; `make test-long` runs all of them, in processes of their own."""

import pytest

from tests.long.campaign import BLOCK_SIZES, run_campaign


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("seed", ["a", "b", "c"])
def test_random_operations_keep_every_invariant_and_leak_no_block(block_size: int, seed: str) -> None:
    tally = run_campaign(seed, 250, block_size)
    assert tally["operations"] == 250


def test_a_campaign_is_a_function_of_its_seed() -> None:
    assert run_campaign("again", 120) == run_campaign("again", 120)

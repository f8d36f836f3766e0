"""Runs in variable-length numbers: what is unpacked is what was packed, and the bound holds."""

import base64

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.pool_page.packing import pack, varints
from tests.fakes.pool_reader import PoolReader

VALUES = st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 2**21, 2**28, 2**32 - 1])
CELLS = st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=60)


def read(text: str, cells: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    reader = PoolReader()
    reader.cells = list(cells)
    reader._blocks(base64.b64decode(text))
    return reader.cells


@given(CELLS, st.sets(st.integers(0, 59)), st.integers(40, 400))
def test_what_fits_is_told_exactly_and_the_rest_is_left(
    cells: list[tuple[int, int, int]], chosen: set[int], limit: int
) -> None:
    columns = np.array(cells, np.uint32)
    changed = np.array(sorted(block for block in chosen if block < len(cells)), np.int64)
    before = [(9, 9, 9)] * len(cells)
    text, count = pack(changed, columns, limit)
    assert len(text) <= limit
    assert count > 0 or not len(changed)
    told = set(changed[:count].tolist())
    assert read(text, before) == [cells[b] if b in told else before[b] for b in range(len(cells))]


def test_a_uniform_pool_is_one_run() -> None:
    text, count = pack(np.arange(100_000), np.full((100_000, 3), 7, np.uint32), 64)
    assert (count, len(text)) == (100_000, 12)  # 1 + 3 + 3 numbers' bytes


def test_numbers_take_a_byte_for_every_seven_bits() -> None:
    data, ends = varints(np.array([[0, 127], [128, 2**35 - 1]], np.int64))
    assert ends.tolist() == [2, 9]
    assert data.tolist() == [0, 127, 128, 1, 255, 255, 255, 255, 127]

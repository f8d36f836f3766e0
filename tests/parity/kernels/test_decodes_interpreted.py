"""Decodes by a work list without a GPU: interpreted, in a process of their own, on tiny shapes.

Owns the verdicts; knows no GPU. Invariant: this process never sets TRITON_INTERPRET.
"""

from typing import Any

import pytest
import torch

from paged_kernels.testing import TOLERANCE
from tests.fixtures.programs import PATIENT, told_by
from tests.parity.kernels import interpreted_decodes

pytestmark = PATIENT


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    result: dict[str, Any] = told_by("tests.parity.kernels.interpreted_decodes", interpreted=True)
    return result


def test_drawn_batches_equal_torch(report: dict[str, Any]) -> None:
    """Ragged rows, prefixes of several depths in one batch, forks of all but the last block, any order."""
    errors = report["drawn"]["errors"]
    assert len(errors) == interpreted_decodes.DRAWN
    assert all(error < TOLERANCE[torch.float32] for error in errors)


def test_every_key_of_a_row_is_in_one_piece(report: dict[str, Any]) -> None:
    assert report["drawn"]["wrong"] == []


def test_lists_for_a_large_device_fit_their_memory_and_name_every_key_once(report: dict[str, Any]) -> None:
    assert len(report["lists"]) == 2 * len(interpreted_decodes.LISTS)
    assert not {name: wrong for name, wrong in report["lists"].items() if wrong}


def test_lists_of_drawn_rows_fit_their_memory_and_name_every_key_once(report: dict[str, Any]) -> None:
    assert report["drawn lists"] == [[]] * interpreted_decodes.DRAWN_LISTS


def test_the_draws_have_common_prefixes_and_parts(report: dict[str, Any]) -> None:
    assert report["drawn"]["shared"] > 10
    assert report["drawn"]["parts"] > 40


def test_a_runner_samples_the_same_tokens_whether_rows_attend_together(report: dict[str, Any]) -> None:
    """With a layer that has a window, which no list serves."""
    tokens = report["runner"]["tokens"]
    assert report["runner"]["together"] == {"listed": 5, "apart": 1}
    assert tokens["listed"] == tokens["torch"]
    assert tokens["apart"] == tokens["torch"]

"""Where decodes wait for the kernel in front, in code compiled for compute capability 9.0."""

from typing import Any

import pytest

from tests.fixtures.programs import PATIENT, told_by

pytestmark = PATIENT


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return dict(told_by("tests.parity.kernels.compiled_decodes", interpreted=False))


@pytest.fixture(scope="module")
def places(told: dict[str, Any]) -> dict[str, list[int]]:
    """By kernel: where it lets the next one start, waits, first loads to registers, and first copies keys."""
    return dict(told["kernels"])


@pytest.mark.parametrize("name", ["8 rows", "60 rows", "60 rows of e4m3"])
def test_only_a_settled_list_is_read_before_the_wait_and_keys_never_are(
    places: dict[str, list[int]], name: str
) -> None:
    started, waited, loaded, copied = places[f"{name} True"]
    assert 0 < started < loaded < waited < copied
    started, waited, loaded, copied = places[f"{name} False"]
    assert 0 < started < waited < loaded < copied


def test_a_store_that_settles_lets_nothing_start_before_it_has_waited(places: dict[str, list[int]]) -> None:
    started, waited, *_ = places["rotate True"]
    assert 0 < waited < started
    started, waited, *_ = places["rotate False"]
    assert 0 < started < waited


def test_a_multiprocessor_holds_as_many_programs_as_work_is_cut_for(told: dict[str, Any]) -> None:
    """With groups of 4 it once held three of four: a quarter of every step's equal pieces came afterwards."""
    assert len(told["held"]) == 7
    for name, (cut, held) in told["held"].items():
        assert held >= cut, name

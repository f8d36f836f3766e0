"""Kernels that compile in threads at start are those that the start launches; nothing is missed."""

from typing import Any

import pytest

from tests.fixtures.graph_cases import SHAPES
from tests.fixtures.programs import PATIENT, told_by

pytestmark = PATIENT


def test_whatever_a_start_launches_was_asked_for_ahead() -> None:
    """On stand-ins for the driver and the compiler: behind the rehearsal of a start, its first steps and all
    its buckets find their kernels compiled, and the rehearsal itself launches none. It takes the buckets from
    both ends.
    """
    results = told_by("tests.parity.model.rehearsed_kernels", interpreted=False)
    assert set(results) == {"wide", "wide and streamed", "qwen3_moe with a dense layer", *SHAPES}
    for name, result in results.items():
        assert result["asked"]["compiled"] > 10, name
        assert result["asked"]["launchers"] == result["asked"]["compiled"], name
        assert "launched" not in result["asked"], name
        assert "compiled" not in result["then"], name
        assert result["then"]["launched"] > 10 * result["buckets"], name
        passes = result["passes"]
        assert len(passes) == result["buckets"], name
        assert passes[::2] + passes[1::2][::-1] == sorted(passes, reverse=True), name


@pytest.fixture(scope="module")
def ordered() -> dict[str, Any]:
    """By case: what became of the kernels that were asked for."""
    return dict(told_by("tests.parity.model.ordered_kernels", interpreted=False))


def test_one_kernel_at_a_time_is_built_in_the_order_asked_for_beside_passes_of_others(
    ordered: dict[str, Any],
) -> None:
    """The passes of every kernel, the first too, went on only when the last kernel's code was being built."""
    found = ordered["all"]
    assert found["order"] == [10, 11, 12, 13, 14, 15]
    assert found["most"] == 1
    assert found["beside"] == [True] * 6
    assert found["error"] == ""


def test_a_kernel_that_cannot_be_built_holds_up_none_behind_it(ordered: dict[str, Any]) -> None:
    found = ordered["one that fails"]
    assert found["order"] == [20, 3, 22, 21, 24]
    assert found["most"] == 1
    assert found["beside"] == [True] * 4
    assert found["error"].startswith("at ")


def test_garbage_is_collected_again_and_triton_is_as_before(ordered: dict[str, Any]) -> None:
    assert (ordered["all"]["collects"], ordered["all"]["collects after"]) == (False, True)
    assert (ordered["one that fails"]["collects"], ordered["one that fails"]["collects after"]) == (
        False,
        False,
    )
    assert [case["left"] for case in ordered.values()] == [[False, False]] * 2

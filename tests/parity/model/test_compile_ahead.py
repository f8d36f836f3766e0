"""Kernels that compile in threads at start are those that the start launches; nothing is missed."""

from tests.fixtures.graph_cases import SHAPES
from tests.fixtures.programs import PATIENT, told_by

pytestmark = PATIENT


def test_whatever_a_start_launches_was_asked_for_ahead() -> None:
    """On stand-ins for the driver and the compiler: behind the rehearsal of a start, its first steps and all
    its buckets find their kernels compiled, and the rehearsal itself launches none.
    """
    results = told_by("tests.parity.model.rehearsed_kernels", interpreted=False)
    assert set(results) == {"wide", "wide and streamed", "qwen3_moe with a dense layer", *SHAPES}
    for name, result in results.items():
        assert result["asked"]["compiled"] > 10, name
        assert result["asked"]["launchers"] == result["asked"]["compiled"], name
        assert "launched" not in result["asked"], name
        assert "compiled" not in result["then"], name
        assert result["then"]["launched"] > 10 * result["buckets"], name

"""The fused Triton kernels without a GPU: interpreted, in a process of their own, on tiny shapes.

Owns the verdicts; knows no GPU. Invariant: this process never sets TRITON_INTERPRET.
"""

from tests.fixtures.programs import PATIENT, told_by

pytestmark = PATIENT


def test_fused_kernels_equal_their_references() -> None:
    report = told_by("tests.parity.kernels.interpreted_fused", interpreted=True)
    assert report["mismatches"] == []
    wrong = {name: error for name, error in report["errors"].items() if not error < 3e-6}
    assert not wrong
    assert max(report["likelihoods"].values()) < 2e-13

"""Attention of long rows compiles for compute capability 9.0 with the Triton that is installed."""

from tests.fixtures.programs import PATIENT, told_by

pytestmark = PATIENT

_SHARED_BYTES = 232448
"""What a program may have on such a device."""
_WAITS = 4
"""Of a group of warps: the first and the last tile one each, the loop two. Triton 3.6 writes one code
for both groups, 3.9 one for each."""


def test_products_run_beside_exponentials_and_none_waits_for_the_one_before() -> None:
    """Where ptxas cannot follow the accumulators it makes every product wait for itself."""
    kernels = told_by("tests.parity.kernels.compiled_long_rows", interpreted=False)["kernels"]
    assert len(kernels) == 3
    for facts in kernels:
        assert facts["shared"] <= _SHARED_BYTES
        assert facts["depends"]
        assert facts["waits"] in (_WAITS, 2 * _WAITS)
        assert facts["multiplications"] > facts["waits"]
        issued, weighed, multiplied = facts["places"]
        assert 0 < issued < weighed < multiplied

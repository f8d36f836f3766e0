"""Streamed products of two models compile for compute capability 9.0 with the Triton that is installed."""

from tests.fixtures.programs import PATIENT, told_by

pytestmark = PATIENT

_SHARED_BYTES = 232448
"""What a program may have on such a device; two fit with 1 KiB each that the device takes for itself."""


def test_streamed_products_fetch_weights_before_they_wait_and_fit_shared_memory() -> None:
    kernels = told_by("tests.parity.kernels.compiled_streams", interpreted=False)["kernels"]
    assert len(kernels) == 23
    for name, facts in kernels.items():
        assert facts["shared"] <= (_SHARED_BYTES // 2 - 1024 if facts["paired"] else _SHARED_BYTES), name
        assert facts["depends"], name
        fetched, waited, multiplied = facts["places"]
        assert 0 < fetched < waited < multiplied, name

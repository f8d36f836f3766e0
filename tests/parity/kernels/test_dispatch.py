"""Which backend is chosen, why, and what is refused.

Owns the tests of dispatch; knows no arithmetic. Invariant: a backend asked for by name runs or raises.
"""

import logging

import pytest
import torch

from paged_kernels import contracts, dispatch, torch_impl
from paged_kernels.cpu_impl import paged


@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_a_cpu_gets_the_compiled_kernels_and_says_by_whom(backend: str) -> None:
    kernels = dispatch.select(backend, "cpu", torch.bfloat16, 64, 16)
    assert kernels.paged_attention is paged.paged_attention
    assert [choice.op for choice in kernels.choices] == list(dispatch.OPERATIONS)
    assert [choice.backend for choice in kernels.choices] == ["cpu", "cpu", "torch", "torch"]
    assert "compiled by" in kernels.choices[0].why


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float64), ("cuda", torch.float32)])
def test_compiled_kernels_by_name_raise_where_they_cannot_run(device: str, dtype: torch.dtype) -> None:
    with pytest.raises(contracts.BackendUnavailableError, match="kernel backend cpu cannot run"):
        dispatch.select("cpu", device, dtype, 64, 16)


def test_auto_in_double_precision_is_torch_and_says_why() -> None:
    kernels = dispatch.select("auto", "cpu", torch.float64, 64, 16)
    assert kernels.paged_attention is torch_impl.paged_attention
    assert all("float64" in choice.why for choice in kernels.choices)


def test_torch_by_name() -> None:
    kernels = dispatch.select("torch", torch.device("cpu"), torch.float64, 1, 4096)
    assert {(choice.backend, choice.why) for choice in kernels.choices} == {("torch", "asked for by name")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_triton_by_name_raises_where_it_cannot_run(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(contracts.BackendUnavailableError, match="triton cannot run"):
        dispatch.select("triton", "cpu", dtype, 64, 16)


@pytest.mark.parametrize(
    ("backend", "dtype", "head_dim", "block_size", "name"),
    [
        ("cuda", torch.float32, 64, 16, "backend"),
        ("auto", torch.int8, 64, 16, "dtype"),
        ("auto", torch.float32, 0, 16, "head_dim"),
        ("auto", torch.float32, 257, 16, "head_dim"),
        ("auto", torch.float32, 64, 0, "block_size"),
        ("auto", torch.float32, 64, 4097, "block_size"),
    ],
)
def test_values_outside_every_kernel_s_range(
    backend: str, dtype: torch.dtype, head_dim: int, block_size: int, name: str
) -> None:
    with pytest.raises(contracts.ArgumentError, match=name):
        dispatch.select(backend, "cpu", dtype, head_dim, block_size)


def test_auto_falls_back_on_a_gpu_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch, "_said", set[str]())  # another test of this process may have heard it
    with caplog.at_level(logging.WARNING):
        first = dispatch.select("auto", "cuda", torch.float64, 64, 16)
        dispatch.select("auto", "cuda", torch.float64, 64, 16)
    assert first.paged_attention is torch_impl.paged_attention
    assert all("fallback" in choice.why and "float64" in choice.why for choice in first.choices)
    assert [record.message for record in caplog.records].count(
        f"falling back to the torch kernels: {first.choices[0].why.removeprefix('fallback: ')}"
    ) == 1

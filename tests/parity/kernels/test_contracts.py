"""Bad arguments of every operation: the error's class, and that its text names the argument.

Owns one row for each rule of contracts.py; knows no arithmetic. Invariant: the check precedes every write.
"""

from typing import Any

import pytest
import torch

from paged_kernels import torch_impl
from paged_kernels.contracts import (
    ArgumentError,
    DeviceError,
    DtypeError,
    KernelError,
    LayoutError,
    ShapeError,
)
from paged_kernels.cpu_impl import paged

torch.set_num_threads(1)
META = torch.device("meta")


def store_args() -> dict[str, Any]:
    pool = torch.zeros(2, 3, 4, 2, 8)
    return {
        "key": torch.ones(5, 2, 8),
        "value": torch.ones(5, 2, 8),
        "k_pool": pool[0],
        "v_pool": pool[1],
        "slot_mapping": torch.arange(5),
    }


def attention_args() -> dict[str, Any]:
    pool = torch.zeros(2, 3, 4, 2, 8)
    return {
        "query": torch.ones(3, 4, 8),
        "k_pool": pool[0],
        "v_pool": pool[1],
        "block_tables": torch.zeros(2, 2, dtype=torch.int32),
        "cu_query_lens": torch.tensor([0, 1, 3], dtype=torch.int32),
        "context_lens": torch.tensor([4, 6], dtype=torch.int32),
        "scale": 1.0,
        "max_query_len": 2,
        "max_context_len": 6,
        "out": None,
    }


BAD_STORES = [
    ("key", torch.ones(5, 16), ShapeError),
    ("key", torch.ones(5, 3, 8), ShapeError),
    ("key", torch.ones(5, 2, 8, dtype=torch.float64), DtypeError),
    ("key", torch.ones(5, 8, 2).transpose(1, 2), LayoutError),
    ("key", torch.ones(5, 2, 8, device=META), DeviceError),
    ("value", torch.ones(5, 2, 4), ShapeError),
    ("value", torch.ones(4, 2, 8), ShapeError),
    ("k_pool", torch.zeros(3, 4, 16), ShapeError),
    ("k_pool", torch.zeros(1, 4097, 2, 8), ShapeError),
    ("k_pool", torch.zeros(3, 4, 2, 257), ShapeError),
    ("v_pool", torch.zeros(3, 4, 2, 9), ShapeError),
    ("v_pool", torch.zeros(3, 4, 2, 8, dtype=torch.float16), DtypeError),
    ("v_pool", torch.zeros(3, 2, 4, 8).transpose(1, 2), LayoutError),
    ("v_pool", torch.zeros(3, 4, 2, 8, device=META), DeviceError),
    ("slot_mapping", torch.arange(4), ShapeError),
    ("slot_mapping", torch.zeros(5, 1, dtype=torch.int32), ShapeError),
    ("slot_mapping", torch.zeros(5), DtypeError),
    ("slot_mapping", torch.arange(5, device=META), DeviceError),
]
BAD_ATTENTIONS = [
    ("query", torch.ones(3, 32), ShapeError),
    ("query", torch.ones(3, 4, 7), ShapeError),
    ("query", torch.ones(3, 5, 8), ShapeError),
    ("query", torch.ones(3, 4, 8, dtype=torch.bfloat16), DtypeError),
    ("query", torch.ones(3, 8, 4).transpose(1, 2), LayoutError),
    ("query", torch.ones(3, 4, 8, device=META), DeviceError),
    ("block_tables", torch.zeros(2, dtype=torch.int32), ShapeError),
    ("block_tables", torch.zeros(3, 2, dtype=torch.int32), ShapeError),
    ("block_tables", torch.zeros(2, 2, dtype=torch.int64), DtypeError),
    ("block_tables", torch.zeros(2, 2, dtype=torch.int32).T, LayoutError),
    ("cu_query_lens", torch.zeros(2, dtype=torch.int32), ShapeError),
    ("cu_query_lens", torch.zeros(3, dtype=torch.int64), DtypeError),
    ("context_lens", torch.zeros(2), DtypeError),
    ("context_lens", torch.zeros(2, 1, dtype=torch.int32), ShapeError),
    ("context_lens", torch.zeros(2, dtype=torch.int32, device=META), DeviceError),
    ("max_context_len", 9, ShapeError),
    ("max_query_len", 7, ShapeError),
    ("max_query_len", -1, ShapeError),
    ("out", torch.zeros(3, 4, 7), ShapeError),
    ("out", torch.zeros(3, 4, 8, dtype=torch.float64), DtypeError),
    ("out", torch.zeros(3, 8, 4).transpose(1, 2), LayoutError),
    ("out", torch.zeros(3, 4, 8, device=META), DeviceError),
    ("window", -1, ArgumentError),
    ("window", 2**31, ArgumentError),
    ("softcap", -1.0, ArgumentError),
    ("softcap", float("nan"), ArgumentError),
]


@pytest.mark.parametrize("kernels", [torch_impl, paged], ids=["torch", "cpu"])
@pytest.mark.parametrize(("name", "value", "error"), BAD_STORES)
def test_store_kvcache_names_what_is_wrong(
    name: str, value: Any, error: type[KernelError], kernels: Any
) -> None:
    args = store_args()
    args[name] = value
    with pytest.raises(error, match=name):
        kernels.store_kvcache(**args)
    assert args["k_pool"].device == META or args["k_pool"].eq(0).all()


@pytest.mark.parametrize("kernels", [torch_impl, paged], ids=["torch", "cpu"])
@pytest.mark.parametrize(("name", "value", "error"), BAD_ATTENTIONS)
def test_paged_attention_names_what_is_wrong(
    name: str, value: Any, error: type[KernelError], kernels: Any
) -> None:
    args = attention_args()
    args[name] = value
    with pytest.raises(error, match=name):
        kernels.paged_attention(**args)


def test_a_pool_of_integers_is_refused() -> None:
    args = store_args()
    args["k_pool"] = args["k_pool"].int()
    with pytest.raises(DtypeError, match="k_pool"):
        torch_impl.store_kvcache(**args)


@pytest.mark.parametrize(
    ("pool", "pairs", "error", "name"),
    [
        (torch.zeros(2, 1, 3, 4, 8), torch.zeros(1, 2).int(), ShapeError, "kv_pool"),
        (torch.zeros(3, 1, 3, 4, 1, 8), torch.zeros(1, 2).int(), ShapeError, "kv_pool"),
        (torch.zeros(2, 3, 2, 4, 1, 8).transpose(1, 2), torch.zeros(1, 2).int(), LayoutError, "kv_pool"),
        (torch.zeros(2, 1, 3, 4, 1, 8), torch.zeros(2, 3).int(), ShapeError, "pairs"),
        (torch.zeros(2, 1, 3, 4, 1, 8), torch.zeros(2).int(), ShapeError, "pairs"),
        (torch.zeros(2, 1, 3, 4, 1, 8), torch.zeros(2, 2), DtypeError, "pairs"),
        (torch.zeros(2, 1, 3, 4, 1, 8), torch.zeros(2, 2, device=META).int(), DeviceError, "pairs"),
    ],
)
def test_copy_blocks_names_what_is_wrong(pool: Any, pairs: Any, error: type[KernelError], name: str) -> None:
    with pytest.raises(error, match=name):
        torch_impl.copy_blocks(pool, pairs)


def test_zero_blocks_names_what_is_wrong() -> None:
    pool = torch.zeros(2, 1, 3, 4, 1, 8)
    with pytest.raises(ShapeError, match="blocks"):
        torch_impl.zero_blocks(pool, torch.zeros(1, 2).int())
    with pytest.raises(DtypeError, match="blocks"):
        torch_impl.zero_blocks(pool, torch.zeros(1))


def test_one_tree_of_errors() -> None:
    for error in (ShapeError, DtypeError, DeviceError, LayoutError):
        assert issubclass(error, ArgumentError)
    assert issubclass(ArgumentError, ValueError)

"""Which implementation of each operation runs: chosen once, for one device, dtypes, head_dim and block_size.

Owns the choice and its reasons; knows nothing of how an operation computes. Invariant: a backend asked for by
name either runs every operation or raises; only "auto" falls back, and it says so once in the log and always
in choices.
"""

import importlib.util
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paged_kernels import contracts, fp8_pool, torch_impl

_log = logging.getLogger(__name__)
BACKENDS = ("auto", "torch", "triton", "cpu")
OPERATIONS = ("store_kvcache", "paged_attention", "copy_blocks", "zero_blocks")
_CPU_DTYPES = (torch.float32, torch.bfloat16)
_TRITON_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_said: set[str] = set()


class Choice(NamedTuple):
    """One operation, the backend that runs it, and why that one."""

    op: str
    backend: str
    why: str


@dataclass(frozen=True)
class FusedKernels:
    """Operations that save launches, where a backend has them; see triton_impl and fused_reference.

    linear_for(tokens, weights, dtype): a product that takes norm, activation and residual along, or None.
    linear(x, weight, bias): the product, or parts of it, which add_rms_norm and rotate_store take.
    gated_linear(x, weight, bias): silu(gate) * up of a weight that packs both.
    expert_blocks(x, ids, shares, gate_up, down): a mixture of experts in parts, which add_rms_norm takes.
    """

    add_rms_norm: Callable[..., Tensor]
    rotate_store: Callable[..., Tensor]
    linear_for: Callable[..., Callable[..., Tensor] | None]
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    gated_linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    expert_blocks: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    embed_tokens: Callable[..., Tensor]
    gather_tables: Callable[..., None]
    draw_tokens: Callable[..., None]


@dataclass(frozen=True)
class Kernels:
    """The operations of one backend; arguments as in torch_impl. fused is None where it has none.

    decode_work: once a step of decodes, what its layers' paged_attention takes as `work`, or None; see
    triton_impl.decode_work.
    """

    store_kvcache: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    paged_attention: Callable[..., Tensor]
    copy_blocks: Callable[[Tensor, Tensor], None]
    zero_blocks: Callable[[Tensor, Tensor], None]
    choices: list[Choice]
    fused: FusedKernels | None = None
    decode_work: Callable[..., Any] | None = None


def select(
    backend: str,
    device: torch.device | str,
    dtype: torch.dtype,
    head_dim: int,
    block_size: int,
    pool_dtype: torch.dtype | None = None,
) -> Kernels:
    """The kernels for queries of this dtype, a head_dim and a block_size (tokens) on this device.

    backend: one of BACKENDS; "cpu" compiles at its first use. pool_dtype: the queries' (or None), or
    fp8_pool.DTYPE. Raises contracts.ArgumentError for values
    outside every kernel's range, and contracts.BackendUnavailableError when a backend asked for by name
    cannot run here.
    """
    device, pool_dtype = torch.device(device), pool_dtype or dtype
    _check_ranges(backend, dtype, head_dim, block_size, pool_dtype)
    if backend == "torch":
        return _torch("asked for by name")
    if backend == "cpu" or (backend == "auto" and device.type == "cpu"):
        return _cpu_or_torch(backend, device, dtype, pool_dtype)
    obstacle = _triton_obstacle(device, dtype, pool_dtype)
    if backend == "triton":
        if obstacle:
            raise contracts.BackendUnavailableError(f"kernel backend triton cannot run: {obstacle}")
        return _triton("asked for by name")
    if obstacle is None and device.type == "cuda":
        return _triton(f"{device.type} device, {dtype}: the fastest here")
    _say_once(f"falling back to the torch kernels: {obstacle}")
    return _torch(f"fallback: {obstacle}")


def choice_of(kernels: Kernels, op: str) -> Choice:
    """What was chosen for one operation."""
    return next(choice for choice in kernels.choices if choice.op == op)


def _cpu_or_torch(backend: str, device: torch.device, dtype: torch.dtype, pool_dtype: torch.dtype) -> Kernels:
    """The compiled CPU kernels; where they cannot run, the torch ones for "auto", an error by name."""
    if pool_dtype != dtype and backend == "auto":
        why = "an fp8_e4m3 pool on a CPU is the torch kernels' own: the compiled ones have none"
        _say_once(f"kernels: torch, for {why}", logging.INFO)
        return _torch(why)
    try:
        if pool_dtype != dtype:
            raise contracts.BackendUnavailableError("it has no fp8_e4m3 pool; torch and triton have")
        return _cpu(device, dtype)
    except contracts.BackendUnavailableError as error:
        if backend == "cpu":
            raise contracts.BackendUnavailableError(f"kernel backend cpu cannot run: {error}") from error
        _say_once(f"falling back to the torch kernels: {error}")
        return _torch(f"fallback: {error}")


def _check_ranges(
    backend: str, dtype: torch.dtype, head_dim: int, block_size: int, pool_dtype: torch.dtype
) -> None:
    if backend not in BACKENDS:
        raise contracts.ArgumentError(f"backend: {backend!r}, expected one of {', '.join(BACKENDS)}")
    if dtype not in contracts.FLOAT_DTYPES:
        raise contracts.DtypeError(f"dtype: {dtype}, expected one of {list(contracts.FLOAT_DTYPES)}")
    if pool_dtype not in (dtype, fp8_pool.DTYPE):
        raise contracts.DtypeError(f"pool_dtype: {pool_dtype}, expected {dtype} or {fp8_pool.DTYPE}")
    if not 1 <= head_dim <= contracts.MAX_HEAD_DIM:
        raise contracts.ShapeError(f"head_dim: {head_dim}, expected 1..{contracts.MAX_HEAD_DIM}")
    if not 1 <= block_size <= contracts.MAX_BLOCK_SIZE:
        raise contracts.ShapeError(f"block_size: {block_size}, expected 1..{contracts.MAX_BLOCK_SIZE}")


def _triton_obstacle(device: torch.device, dtype: torch.dtype, pool_dtype: torch.dtype) -> str | None:
    """Why Triton cannot run for this device and these dtypes, or None."""
    if importlib.util.find_spec("triton") is None:
        return "the triton package is not installed"
    if dtype not in _TRITON_DTYPES:
        return f"dtype {dtype} is not among {', '.join(map(str, _TRITON_DTYPES))}"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if device.type != "cuda":
        return f"it needs a CUDA device, not {device.type} (or TRITON_INTERPRET=1, for tests)"
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    least = (8, 9) if pool_dtype == fp8_pool.DTYPE else (8, 0)
    if torch.cuda.get_device_capability(device) < least:
        name, needs = torch.cuda.get_device_name(device), ".".join(map(str, least))
        return f"with a {pool_dtype} pool it needs compute capability {needs}, {name} has less"
    return None


def _torch(why: str) -> Kernels:
    choices = [Choice(op, "torch", why) for op in OPERATIONS]
    return Kernels(
        torch_impl.store_kvcache,
        torch_impl.paged_attention,
        torch_impl.copy_blocks,
        torch_impl.zero_blocks,
        choices,
    )


def _cpu(device: torch.device, dtype: torch.dtype) -> Kernels:
    """Raises BackendUnavailableError for another device or dtype, or when nothing compiles the kernels."""
    from paged_kernels.cpu_impl import library, paged

    if device.type != "cpu":
        raise contracts.BackendUnavailableError(f"it needs a CPU, not {device.type}")
    if dtype not in _CPU_DTYPES:
        names = ", ".join(map(str, _CPU_DTYPES))
        raise contracts.BackendUnavailableError(f"dtype {dtype} is not among {names}")
    why = library.load().origin
    moved = "memory copies, nothing to compile"
    choices = [Choice(op, "cpu", why) for op in OPERATIONS[:2]]
    choices += [Choice(op, "torch", moved) for op in OPERATIONS[2:]]
    return Kernels(
        paged.store_kvcache,
        paged.paged_attention,
        torch_impl.copy_blocks,
        torch_impl.zero_blocks,
        choices,
    )


def _triton(why: str) -> Kernels:
    from paged_kernels.triton_impl import blocks, decode_work, paged_attention, store_kvcache
    from paged_kernels.triton_impl.fused import FUSED

    choices = [Choice(op, "triton", why) for op in OPERATIONS]
    return Kernels(
        store_kvcache.store_kvcache,
        paged_attention.paged_attention,
        blocks.copy_blocks,
        blocks.zero_blocks,
        choices,
        FUSED,
        decode_work.decode_work,
    )


def _say_once(message: str, level: int = logging.WARNING) -> None:
    if message not in _said:
        _said.add(message)
        _log.log(level, message)

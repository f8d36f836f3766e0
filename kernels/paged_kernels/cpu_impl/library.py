"""The compiled kernels as ctypes functions, and the C structures that they take.

Owns the binary interface; knows no tensor operation. Invariant: the field order here is that of the C++
structures, which a size check at load confirms.
"""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.cpu_impl import ahead
from paged_kernels.cpu_impl.build import native_library
from paged_kernels.kernel_cache import cache_folder

_POINTER, _I64, _I32, _F32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float
FLOAT32, BFLOAT16, INT8, INT4, GRID8, GRID4 = range(6)
GROUP = 32


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class Weight(ctypes.Structure):
    """A packed weight; see packed.hpp."""

    _fields_ = [
        *_fields(_POINTER, "data wide scales least bias"),
        *_fields(_I32, "format columns k gated"),
    ]


class Attention(ctypes.Structure):
    """The arguments of paged attention; see attention.hpp. Strides are in elements."""

    _fields_ = [
        *_fields(_POINTER, "query out k_pool v_pool tables starts contexts"),
        *_fields(_I64, "query_token query_head out_token out_head"),
        *_fields(_I64, "pool_block pool_slot pool_head num_blocks table_row"),
        *_fields(_I32, "rows block_size kv_heads query_heads head_dim window"),
        *_fields(_F32, "scale softcap"),
    ]


class Store(ctypes.Structure):
    """The arguments of store_kvcache; see attention.hpp. Strides are in elements."""

    _fields_ = [
        *_fields(_POINTER, "key value k_pool v_pool slots"),
        *_fields(_I64, "tokens slot_bytes key_token key_head value_token value_head"),
        *_fields(_I64, "pool_block pool_slot pool_head num_blocks"),
        *_fields(_I32, "block_size kv_heads head_dim element_bytes"),
    ]


class Layer(ctypes.Structure):
    """One decoder layer; see layers.hpp."""

    _fields_ = [
        *_fields(_POINTER, "input_norm post_norm attention_out_norm mlp_out_norm qk_norm cos_sin"),
        *_fields(Weight, "qkv out gate_up down"),
        *_fields(_POINTER, "k_pool v_pool"),
        ("window", _I64),
    ]


class Step(ctypes.Structure):
    """One step's tensors and buffers; see layers.hpp."""

    _fields_ = [
        ("attention", Attention),
        *_fields(_POINTER, "positions slots hidden normed attended gated qkv product query"),
        *_fields(_I64, "tokens num_positions normed_ld attended_ld gated_ld"),
        *_fields(_I32, "hidden_size pool_is_bf16 activations_are_bf16 rotary_dim qk_norm_is_wide gelu"),
        ("norm_eps", _F32),
        ("spent", _POINTER),
    ]


_STRUCTURES: tuple[type[ctypes.Structure], ...] = (Weight, Attention, Store, Layer, Step)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "octavo_set_threads": (_I32, [_I32]),
    "octavo_lanes": (_I32, []),
    "octavo_has_bf16_dot": (_I32, []),
    "octavo_size_of": (_I64, [_I32]),
    "octavo_store_kvcache": (_I32, [_POINTER]),
    "octavo_paged_attention": (_I32, [_POINTER, _I32]),
    "octavo_packed_words": (_I64, [_POINTER]),
    "octavo_wide_words": (_I64, [_POINTER]),
    "octavo_packed_scales": (_I64, [_POINTER]),
    "octavo_pack": (_I32, [_POINTER, _POINTER]),
    "octavo_linear": (None, [_POINTER, _POINTER, _I64, _I64, _POINTER]),
    "octavo_run_layers": (_I32, [_POINTER, _POINTER, _I64]),
    "octavo_logits": (None, [_POINTER, _POINTER, _F32, _POINTER, _I64, _POINTER, _I64, _POINTER]),
}


@dataclass(frozen=True)
class Library:
    """The loaded kernels. call: the C functions by name, without the prefix octavo_.

    origin: who compiled them. bf16_dot: the processor multiplies pairs of bfloat16 in one instruction.
    """

    call: dict[str, Callable[..., Any]]
    origin: str
    bf16_dot: bool

    def set_threads(self, count: int) -> int:
        """Threads of every later call of this process; returns how many there are."""
        return int(self.call["set_threads"](count))


def library_path() -> tuple[Path, str]:
    """The library to load and a line about its origin: compiled for this processor, else one compiled ahead.

    Raises BackendUnavailableError with both reasons.
    """
    try:
        return native_library()
    except BackendUnavailableError as native:
        try:
            return ahead.find(cache_folder(), ahead.instruction_sets())
        except BackendUnavailableError as error:
            raise BackendUnavailableError(f"{native}; {error}") from native


def load() -> Library:
    """The kernels of this machine, compiled first where needed. Raises BackendUnavailableError."""
    found = outcome()
    if isinstance(found, BackendUnavailableError):
        raise found.with_traceback(None)
    return found


@functools.cache
def outcome() -> Library | BackendUnavailableError:
    """The kernels, or why there are none: what took a compiler long to fail at is not tried again."""
    try:
        return _loaded()
    except BackendUnavailableError as error:
        return error


def _loaded() -> Library:
    path, origin = library_path()
    try:
        raw = ctypes.CDLL(str(path))
        functions = {}
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(raw, name)
            function.restype, function.argtypes = result, arguments
            functions[name.removeprefix("octavo_")] = function
    except (OSError, AttributeError) as error:
        raise BackendUnavailableError(f"the compiled CPU kernels cannot be loaded: {error}") from error
    for number, structure in enumerate(_STRUCTURES):
        size = functions["size_of"](number)
        if size != ctypes.sizeof(structure):
            raise BackendUnavailableError(
                f"{path}: {structure.__name__} has {size} bytes, expected {ctypes.sizeof(structure)}"
            )
    bf16_dot = bool(functions["has_bf16_dot"]())
    lanes = functions["lanes"]()
    width = f"{32 * lanes}-bit vectors{', bfloat16 dot products' if bf16_dot else ''}"
    return Library(functions, f"{origin}, {width}", bf16_dot)

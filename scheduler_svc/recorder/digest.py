"""A small digest of a plan, field by field, so that a replay can name the field that differs.

Owns the digest; knows neither file nor core. Invariant: it covers every field of a StepPlan, and two plans
with one digest have the same fields but for a chance of 2^-32 each.
"""

import struct
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, get_type_hints

import msgpack
import numpy as np
import xxhash

from scheduler_svc.core.plan import StepPlan
from scheduler_svc.recorder.values import field_names, is_array, plain

DIGEST_BYTES = 4
_HINTS = get_type_hints(StepPlan)
_ARRAYS = tuple(name for name in field_names(StepPlan) if is_array(_HINTS[name]))
_OTHERS = tuple(name for name in field_names(StepPlan) if name not in (*_ARRAYS, "step_id"))
DIGEST_FIELDS = (*_ARRAYS, *_OTHERS)
"""The fields in the order of their digests; a log's header names them. step_id is written beside them."""

_arrays_of = attrgetter(*_ARRAYS)
_WORDS = struct.Struct(f"<{len(DIGEST_FIELDS)}I")
_MASK = (1 << 8 * DIGEST_BYTES) - 1
_hash = xxhash.xxh3_64_intdigest


def digests_of(plan: StepPlan) -> bytes:
    """DIGEST_BYTES of each of `DIGEST_FIELDS`, little-endian."""
    words = [_hash(array) & _MASK for array in _arrays_of(plan)]
    words += [_hash(_packed(getattr(plan, name))) & _MASK for name in _OTHERS]
    return _WORDS.pack(*words)


def digest_of(value: Any) -> int:
    """The digest of one field's value."""
    data: Any = value if isinstance(value, np.ndarray) else _packed(value)
    return _hash(data) & _MASK


def differing(fields: Sequence[str], recorded: bytes, plan: StepPlan) -> list[tuple[str, int, int]]:
    """(field, recorded digest, the plan's digest) where they differ. fields: those of the log."""
    words = np.frombuffer(recorded, "<u4").tolist()
    pairs = [(name, word, digest_of(getattr(plan, name))) for name, word in zip(fields, words, strict=True)]
    return [(name, old, new) for name, old, new in pairs if old != new]


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=plain)
    return packed

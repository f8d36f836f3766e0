"""Arrays on the wire: little-endian int32 in bytes fields.

Owns the one encoding of every array that grows with tokens or blocks; knows no message. Invariant:
decode(encode(a)) == a.
"""

import numpy as np
import numpy.typing as npt

from octavo.errors import InvalidArgument

_WIRE = np.dtype("<i4")


def encode(values: npt.NDArray[np.int32]) -> bytes:
    """The little-endian int32 bytes of a contiguous array of any shape, row-major."""
    return values.astype(_WIRE, copy=False).tobytes()


def decode(data: bytes, name: str) -> npt.NDArray[np.int32]:
    """A read-only view [N] of the bytes. Raises InvalidArgument, naming the field, when N is not whole."""
    if len(data) % 4:
        raise InvalidArgument(f"{name}: {len(data)} bytes is not a whole number of int32", field=name)
    return np.frombuffer(data, _WIRE)

"""Blocks that changed as a short string: runs of equal neighbours in variable-length numbers, in base64.

Owns that format; does not know what a block's numbers mean. Invariant: a reader that applies every string to
the arrays it has ends with the arrays that were packed.

A run is five numbers: blocks skipped since the end of the run before, blocks in it, and the three values that
they all have now. Each number is written in groups of 7 bits, the lowest first, the top bit set on all but
the last byte.
"""

import base64

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.plan import Int64Array

Columns = npt.NDArray[np.uint32]
"""[num_blocks, 3]"""


def runs_of(blocks: Int64Array, columns: Columns) -> npt.NDArray[np.int64]:
    """[n, 5] the runs of these blocks (rising) with their values columns[blocks]."""
    values = columns[blocks].astype(np.int64)
    joined = (np.diff(blocks) == 1) & (np.diff(values, axis=0) == 0).all(1)
    starts = np.concatenate(([0], np.flatnonzero(~joined) + 1))
    lengths = np.diff(np.append(starts, len(blocks)))
    first = blocks[starts]
    skipped = first - np.concatenate(([0], (first + lengths)[:-1]))
    return np.column_stack((skipped, lengths, values[starts]))


def pack(blocks: Int64Array, columns: Columns, max_characters: int) -> tuple[str, int]:
    """The string of as many of these blocks (rising) as fit, and how many those are. Whole runs only; the
    first run always fits 40 characters.
    """
    if not len(blocks):
        return "", 0
    runs = runs_of(blocks, columns)
    data, ends = varints(runs)
    fits = int(np.searchsorted(ends, max_characters // 4 * 3, side="right"))
    if not fits:
        return "", 0
    return base64.b64encode(data[: ends[fits - 1]].tobytes()).decode(), int(runs[:fits, 1].sum())


def varints(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], Int64Array]:
    """The bytes of all numbers ([n, k], each below 2^35), and where each row of them ends [n]."""
    flat = values.ravel()
    sizes = np.ones(len(flat), np.int64)
    for bits in (7, 14, 21, 28):
        sizes += flat >= 1 << bits
    ends = np.cumsum(sizes)
    starts = ends - sizes
    data = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for place in range(int(sizes.max(initial=0))):
        reaches = sizes > place
        more = np.where(sizes[reaches] > place + 1, 0x80, 0)
        data[starts[reaches] + place] = (flat[reaches] >> 7 * place & 0x7F) | more
    return data, ends[values.shape[1] - 1 :: values.shape[1]]

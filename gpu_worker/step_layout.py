"""A step of fixed size as one run of int32: where each array lies, and how a plan is written into it.

Owns the layout, its padding and the buckets that steps are rounded up to; knows no device. Invariant: padding
names only the scratch row, the null block, slot -1 and token 0, so a padded step computes what the plan says
and nothing else of consequence.
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor, float32, float64, int64

from gpu_worker.rows import RowTable
from gpu_worker.wire import Int32Array, Plan

_ALIGNED = 4
"""Arrays begin at multiples of 16 bytes: kernels are compiled for that."""


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Room for `tokens` new tokens of `rows` rows and as many samples; decode: one token a row."""

    tokens: int
    rows: int
    decode: bool


class StepLayout:
    """Offsets of a bucket's arrays, in int32 units.

    T tokens, R rows, R samples, T table entries. seeds [R] int64; temperatures [R] float32; filters [R, 3]
    float64: top_p, min_p, top_k; else int32.
    """

    def __init__(self, bucket: Bucket) -> None:
        tokens, rows = bucket.tokens, bucket.rows
        self.bucket = bucket
        self._lengths = {
            "seeds": 2 * rows,
            "filters": 6 * rows,
            "input_ids": tokens,
            "positions": tokens,
            "slot_mapping": tokens,
            "owners": tokens,
            "table_rows": tokens,
            "table_offsets": tokens,
            "table_blocks": tokens,
            "rows": rows,
            "context_lens": rows,
            "cu_query_lens": rows + 1,
            "sample_positions": rows,
            "sample_rows": rows,
            "output_positions": rows,
            "temperatures": rows,
        }
        self._offsets, end = {}, 0
        for name, length in self._lengths.items():
            self._offsets[name] = end
            end += -(-length // _ALIGNED) * _ALIGNED
        self.size = end

    def views(self, packed: Tensor) -> dict[str, Tensor]:
        """The arrays in a packed int32 tensor of at least `size`, by name."""
        views = {
            name: packed[offset : offset + self._lengths[name]] for name, offset in self._offsets.items()
        }
        return views | {
            "seeds": views["seeds"].view(int64),
            "temperatures": views["temperatures"].view(float32),
            "filters": views["filters"].view(float64).view(-1, 3),
        }

    def write(self, packed: Int32Array, plan: Plan, table: RowTable, null_block: int) -> None:
        """Writes a plan that fits into packed [size]; table entries only if they `enters`."""
        scratch = table.limits.max_batch_seqs
        tokens, rows, samples = len(plan.input_ids), len(plan.rows), plan.sample_rows
        self._put(packed, "input_ids", plan.input_ids, 0)
        self._put(packed, "positions", plan.positions, 0)
        self._put(packed, "slot_mapping", plan.slot_mapping, -1)
        if rows == 1:
            owners = self._part(packed, "owners")
            owners[:tokens], owners[tokens:] = plan.rows, scratch
        else:
            owners = plan.rows if tokens == rows else plan.rows.repeat(plan.query_lens)
            self._put(packed, "owners", owners, scratch)
        entered = self.enters(plan)
        self._put(packed, "table_rows", plan.table_rows if entered else _NONE, scratch)
        self._put(packed, "table_offsets", plan.table_offsets if entered else _NONE, 0)
        self._put(packed, "table_blocks", plan.table_blocks if entered else _NONE, null_block)
        self._put(packed, "rows", plan.rows, scratch)
        self._put(packed, "context_lens", plan.context_lens, 0)
        ends = self._part(packed, "cu_query_lens")
        ends[0] = 0
        np.cumsum(plan.query_lens, out=ends[1 : rows + 1])
        ends[rows + 1 :] = tokens
        self._put(packed, "sample_positions", plan.sample_positions, 0)
        self._put(packed, "sample_rows", samples, scratch)
        contexts = plan.positions[plan.sample_positions] + 1
        self._put(packed, "output_positions", contexts - table.prompt_lens[samples], 0)
        sampling = table.sampling[samples]
        self._put(packed, "temperatures", sampling[:, 0].astype(np.float32).view(np.int32), 0)
        self._put(packed, "filters", sampling[:, 1:].reshape(-1).view(np.int32), 0)
        self._put(packed, "seeds", table.seeds[samples].view(np.int32), 0)

    def write_padding(self, packed: Int32Array, table: RowTable, null_block: int) -> None:
        """Writes a step without rows: everything is padding."""
        scratch = table.limits.max_batch_seqs
        packed[: self.size] = 0
        for name, value in (
            ("slot_mapping", -1),
            ("owners", scratch),
            ("table_rows", scratch),
            ("table_blocks", null_block),
            ("rows", scratch),
            ("sample_rows", scratch),
        ):
            self._part(packed, name)[:] = value

    def enters(self, plan: Plan) -> bool:
        """Whether the plan's table entries have room in the bucket; if not they must be entered before."""
        return len(plan.table_rows) <= self.bucket.tokens

    def _part(self, packed: Int32Array, name: str) -> Int32Array:
        offset = self._offsets[name]
        return packed[offset : offset + self._lengths[name]]

    def _put(
        self,
        packed: Int32Array,
        name: str,
        values: npt.NDArray[np.int32] | npt.NDArray[np.int64],
        padding: int,
    ) -> None:
        part = self._part(packed, name)
        if len(values) == len(part):
            part[:] = values
            return
        part[: len(values)] = values
        part[len(values) :] = padding


_NONE = np.empty(0, np.int32)


class Buckets:
    """The buckets of a worker, and the choice among them.

    Decodes: powers of two, then steps of 16 or 32 rows up to max_rows. Mixed steps: powers of two with the
    halves between from 1024 tokens on, for few rows and for max_rows, up to max_tokens.
    """

    def __init__(self, max_tokens: int, max_rows: int) -> None:
        most = min(max_rows, max_tokens)
        sizes = [1, 2, 4, 8, *range(16, min(most, 128), 16), *range(128, most, 32)]
        self.decode = [Bucket(n, n, True) for n in (*(n for n in sizes if n < most), most)]
        lengths = [
            n for n in (32, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192) if n < max_tokens
        ]
        self._row_sizes = sorted({min(_FEW_ROWS, most), most})
        self.mixed = {
            rows: [Bucket(n, rows, False) for n in (*lengths, max_tokens) if 2 * n >= rows]
            for rows in self._row_sizes
        }

    def all(self) -> list[Bucket]:
        """Every bucket, the largest first."""
        mixed = [bucket for buckets in self.mixed.values() for bucket in buckets]
        return sorted([*self.decode, *mixed], reverse=True)

    def choose(self, tokens: int, rows: int, samples: int) -> Bucket | None:
        """The smallest bucket for that many, or None."""
        if tokens == rows and samples <= rows:
            at = bisect_left(self.decode, rows, key=lambda bucket: bucket.rows)
            return self.decode[at] if at < len(self.decode) else None
        needed = max(rows, samples)
        for size in self._row_sizes:
            if needed <= size:
                at = bisect_left(self.mixed[size], tokens, key=lambda bucket: bucket.tokens)
                return self.mixed[size][at] if at < len(self.mixed[size]) else None
        return None


_FEW_ROWS = 16

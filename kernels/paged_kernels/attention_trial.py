# mypy: disable-error-code="no-untyped-call"
"""A short trial of attention backends on the device: do they run, are they right, how long do they take.

Owns the trial's cases, inputs and clock; knows no package and makes no choice. Invariant: launches have the
bounds and the tables that captured steps have, and every slot that no row uses is NaN.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paged_kernels.flash_impl.constraints import AttentionShape

Attend = Callable[..., Tensor]
TOLERANCE = 2e-2
"""Relative error against the backend that is there anyway; 16-bit kernels agree to about 3e-3."""
_CONTEXT = 1024
_PROMPT = 2048
_MANY_DECODES, _DECODES_IN_MIXED = 64, 32
_FEW_ROWS, _MOST_ROWS = 16, 1024
_MOST_BYTES = 256 << 20
_COLD_BYTES = 128 << 20
_CALLS, _REPLAYS = 8, 5


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a worker's steps, in tokens and rows."""

    max_tokens: int
    max_rows: int
    max_context: int


@dataclass(frozen=True, slots=True)
class Case:
    """rows: (new tokens, context) of each; behind them `padding` rows of neither, as in captured steps."""

    name: str
    rows: tuple[tuple[int, int], ...]
    padding: int = 0

    @property
    def tokens(self) -> int:
        return sum(queries for queries, _ in self.rows)


def decode_cases(shape: AttentionShape, bounds: Bounds) -> list[Case]:
    """One row, and many; fewer where memory or the worker's bounds allow no more."""
    context = min(_CONTEXT, bounds.max_context)
    fitting = _MOST_BYTES // (_blocks(context, shape) * _block_bytes(shape))
    counts = sorted({1, max(1, min(_MANY_DECODES, bounds.max_rows, bounds.max_tokens, fitting))})
    return [Case(f"{count} x {context}", tuple(_decodes(count, context))) for count in counts]


def mixed_cases(shape: AttentionShape, bounds: Bounds) -> list[Case]:
    """A prompt by itself, and where rows allow a chunk of one beside decodes; padded to the rows of a small
    and of the largest bucket.
    """
    prompt = min(_PROMPT, bounds.max_tokens, bounds.max_context)
    cases = [Case(f"prompt of {prompt}", ((prompt, prompt),), min(_FEW_ROWS, bounds.max_rows) - 1)]
    context = min(_CONTEXT, bounds.max_context)
    fitting = _MOST_BYTES // (_blocks(context, shape) * _block_bytes(shape)) - 4
    decodes = min(_DECODES_IN_MIXED, bounds.max_rows - 1, prompt // 2, fitting)
    if decodes > 0:
        chunk = prompt - decodes
        rows = (*_decodes(decodes, context), (chunk, min(bounds.max_context, chunk + context)))
        padding = max(0, min(bounds.max_rows, _MOST_ROWS) - len(rows))
        cases.append(Case(f"chunk of {chunk} + {decodes} x {context}", rows, padding))
    return cases


def seconds_of(
    attend: Attend, cases: Sequence[Case], shape: AttentionShape, bounds: Bounds, reference: Attend | None
) -> list[float]:
    """Seconds of one call in each case, replayed from a CUDA graph.

    reference: what must come out, or None. Raises ValueError for a wrong result, and what a backend raises.
    """
    try:
        with torch.inference_mode():
            return [_seconds(attend, case, shape, bounds, reference) for case in cases]
    finally:
        torch.cuda.empty_cache()


def _seconds(
    attend: Attend, case: Case, shape: AttentionShape, bounds: Bounds, reference: Attend | None
) -> float:
    batches = make_inputs(case, shape, bounds)
    result = attend(**batches[0])
    if reference is not None:
        _check(case, result, reference(**batches[0]))
    return _replayed([partial(attend, **batch) for batch in batches])


def _check(case: Case, result: Tensor, expected: Tensor) -> None:
    error = float((result.float() - expected.float()).norm() / expected.float().norm())
    if not error <= TOLERANCE:
        raise ValueError(f"its result for {case.name} differs by {error:.1e}, {TOLERANCE:.0e} is allowed")


def make_inputs(case: Case, shape: AttentionShape, bounds: Bounds, on: str = "cuda") -> list[dict[str, Any]]:
    """Arguments of paged_attention, several with blocks of their own where one would fit a cache."""
    held = [_blocks(context, shape) for _, context in case.rows]
    copies = min(_CALLS, max(1, _COLD_BYTES // (sum(held) * _block_bytes(shape))))
    count, generator = copies * sum(held), torch.Generator().manual_seed(len(case.rows))
    pools = torch.full(
        (2, count + 1, shape.block_size, shape.kv_heads, shape.head_dim),
        float("nan"),
        dtype=shape.dtype,
        device=on,
    )
    width = _blocks(bounds.max_context, shape)
    rows = [*case.rows, *[(0, 0)] * case.padding]
    tables = torch.full((copies, len(rows), width), count, dtype=torch.int32)
    ids = iter(torch.randperm(count, generator=generator).int().split(held * copies))
    for copy in range(copies):
        for row, (_, context) in enumerate(case.rows):
            mine = next(ids)
            tables[copy, row, : held[row]] = mine
            _fill(pools, mine.to(on), context)
    starts = torch.tensor([0] + [queries for queries, _ in rows]).cumsum(0).int().to(on)
    contexts = torch.tensor([context for _, context in rows], dtype=torch.int32, device=on)
    query = torch.randn((case.tokens, shape.query_heads, shape.head_dim), device=on).to(shape.dtype)
    decode = case.tokens == len(rows)
    return [
        {
            "query": query,
            "k_pool": pools[0],
            "v_pool": pools[1],
            "block_tables": table,
            "cu_query_lens": starts,
            "context_lens": contexts,
            "scale": shape.head_dim**-0.5,
            "max_query_len": 1 if decode else case.tokens,
            "max_context_len": width * shape.block_size,
        }
        for table in tables.to(on)
    ]


def _fill(pools: Tensor, blocks: Tensor, context: int) -> None:
    """Random keys and values in the first `context` slots of these blocks."""
    size = pools.shape[2]
    pools[:, blocks[:-1].long()] = torch.randn_like(pools[:, blocks[:-1].long()])
    last = context - (len(blocks) - 1) * size
    pools[:, blocks[-1].long(), :last] = torch.randn_like(pools[:, blocks[-1].long(), :last])


def _replayed(calls: list[Callable[[], Tensor]]) -> float:
    """Seconds of one call on the device: the fastest of some replays of a graph of _CALLS of them."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for number in range(_CALLS):
            calls[number % len(calls)]()
    times = []
    for _ in range(_REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) / 1000 / _CALLS)
    return min(times)


def _decodes(count: int, context: int) -> list[tuple[int, int]]:
    """Rows of one new token, with contexts a little below `context` so that blocks end unused."""
    return [(1, max(1, context - 3 * number % 61)) for number in range(count)]


def _blocks(context: int, shape: AttentionShape) -> int:
    return -(-context // shape.block_size)


def _block_bytes(shape: AttentionShape) -> int:
    return 2 * shape.block_size * shape.kv_heads * shape.head_dim * shape.dtype.itemsize

"""Plans for tests, made from a few lengths.

Owns a builder with sensible arrays; knows no scheduling. Invariant: what is not given follows from the
lengths.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_svc.core.plan import SAMPLED_LAST, RowSetup, SamplingParams, SeqId, StepId, StepPlan


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def setup(row: int, prompt_len: int = 3, **sampling: Any) -> RowSetup:
    return RowSetup(row, SeqId(row + 1), prompt_len, SamplingParams(**sampling))


def plan(
    step_id: int = 1,
    rows: Sequence[int] = (0,),
    query_lens: Sequence[int] | None = None,
    context_lens: Sequence[int] | None = None,
    **given: Any,
) -> StepPlan:
    """A step of rows with new tokens; each samples its last one. given: arrays or tuples to replace."""
    queries = list(query_lens if query_lens is not None else [1] * len(rows))
    contexts = list(context_lens if context_lens is not None else [query + 4 for query in queries])
    tails = [p for q, c in zip(queries, contexts, strict=True) for p in range(c - q, c)]
    arrays: dict[str, Any] = {
        "released_rows": ints(),
        "setups": (),
        "table_rows": ints(),
        "table_offsets": ints(),
        "table_blocks": ints(),
        "zero_blocks": ints(),
        "copy_pairs": np.empty((0, 2), np.int32),
        "rows": ints(*rows),
        "query_lens": ints(*queries),
        "context_lens": ints(*contexts),
        "input_ids": np.full(sum(queries), SAMPLED_LAST, np.int32),
        "positions": ints(*tails),
        "slot_mapping": ints(*range(100, 100 + sum(queries))),
        "sample_positions": np.cumsum(queries).astype(np.int32) - 1,
        "sample_rows": ints(*rows),
    }
    return StepPlan(step_id=StepId(step_id), **arrays | given)

"""Block sizes and the scheduler's own time: hashing, looking up, planning.

Owns what is timed; knows no traffic. Invariant: block sizes take turns, every time is a minimum over many
runs, and it stands beside the one for blocks of 16 of the same run.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash

from benchmarks.block_size.traffic import Note
from benchmarks.core_load import Load, best_of_each, drain, empty_core
from scheduler_svc.core.block_hash import chain_keys, xxh3_128
from scheduler_svc.core.plan import NewRequest, SeqId, StepId

PROMPT_TOKENS = 8192
ROWS = 256


def hash_of_one_block(runs: int) -> dict[str, float]:
    """Nanoseconds of one xxh3_128 digest over 256 token ids (1024 bytes), the call from Python counted; and
    of an empty one, which is the call alone.
    """
    tokens = np.random.default_rng(0).integers(0, 32_000, 256, np.int32).tobytes()
    calls = 2000

    def seconds(data: bytes) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            xxhash.xxh3_128_digest(data)
        return (time.perf_counter() - started) / calls

    return {
        "ns_256_tokens": 1e9 * min(seconds(tokens) for _ in range(runs * 10)),
        "ns_empty": 1e9 * min(seconds(b"") for _ in range(runs * 10)),
    }


def hash_and_lookup(sizes: tuple[int, ...], runs: int, note: Note) -> list[dict[str, Any]]:
    """Microseconds to hash a prompt of 8192 tokens, and to find and verify all of its blocks."""
    note("hash and lookup")
    calls = {size: _calls(size) for size in sizes}
    best = {size: [float("inf"), float("inf")] for size in sizes}
    for _ in range(runs * 10):
        for size, pair in calls.items():
            for i, call in enumerate(pair):
                started = time.perf_counter()
                call()
                best[size][i] = min(best[size][i], time.perf_counter() - started)
    return [
        {"block_size": size, "hash_us": 1e6 * hashing, "lookup_us": 1e6 * looking}
        for size, (hashing, looking) in best.items()
    ]


def _calls(size: int) -> tuple[Callable[[], object], Callable[[], object]]:
    core = empty_core(2 * PROMPT_TOKENS // size + 8, block_size=size)
    prompt = np.random.default_rng(2).integers(0, 32_000, PROMPT_TOKENS + 1, np.int32)
    core.add(NewRequest(SeqId(0), prompt, max_tokens=1), 0.0)
    drain(core)
    lifecycle = core._lifecycle
    session = lifecycle.session
    assert session is not None
    manager = session.manager
    seq = lifecycle.add(NewRequest(SeqId(1), prompt, max_tokens=1), 0.0)
    assert len(manager.match_prefix(seq, StepId(0)).blocks) == PROMPT_TOKENS // size
    parent, whole = np.zeros(2, np.uint64), prompt[:PROMPT_TOKENS]
    return lambda: chain_keys(xxh3_128, parent, whole, size), lambda: manager.match_prefix(seq, StepId(0))


def scheduling(sizes: tuple[int, ...], runs: int, note: Note) -> list[dict[str, Any]]:
    """Microseconds of a steady decode step of 256 rows, and bytes of its plan: mean and worst of 32 steps."""
    note("scheduling cost")
    loads = {
        size: Load(ROWS, num_blocks=ROWS * (2 + -(-(size + 400) // size)), block_size=size) for size in sizes
    }
    best = best_of_each(list(loads.values()), runs)
    rows = []
    for size, load in loads.items():
        times = best[load]
        plan = times.schedule + times.encode
        whole = plan + times.apply
        rows.append(
            {
                "block_size": size,
                "plan_us": float(plan.mean()),
                "step_us": float(whole.mean()),
                "step_us_worst": float(whole.max()),
            }
        )
    return rows

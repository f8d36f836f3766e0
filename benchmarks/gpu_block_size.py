# mypy: disable-error-code="no-untyped-call"
"""Decode attention by block size on a CUDA device: `python -m benchmarks.gpu_block_size [--out FILE]`.

Owns the shapes (Qwen3-0.6B: 16 query heads, 8 KV heads of 128, bfloat16), the order of the rounds and the
floors; the drawing of inputs and the timing are gpu_parts'. Invariant: block sizes take turns within each
round, every call of a replay reads other blocks than the one before (more than the second cache holds), and a
time stands beside the floor of the bytes it must read. Last line: one JSON object.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_parts import (
    Inputs,
    attention_inputs,
    copy_bandwidth,
    decode_rows,
    error_of,
    kv_bytes,
    machine,
    time_us,
)
from benchmarks.gpu_report import this_commit
from paged_kernels.triton_impl import paged_attention as launch

BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
CASES = ((32, 1024), (256, 1024), (1, 8192))
CALLS = 8
DISTINCT_BYTES = 400 << 20
"""Least bytes that the calls of one replay read before they read the same again: 8 times an H200's second
cache.
"""


def copies_of(rows: list[tuple[int, int]], block_size: int) -> list[Inputs]:
    """Inputs of equal shape on pools of their own."""
    count = min(CALLS, -(-DISTINCT_BYTES // kv_bytes(rows)))
    return [attention_inputs(rows, block_size) for _ in range(count)]


def attention_us(copies: list[Inputs]) -> float:
    turns: Iterator[Inputs] = itertools.cycle(copies)
    return time_us(lambda: launch.paged_attention(**next(turns)), calls=CALLS)


def measure(case: tuple[int, int], rounds: int, bandwidth: float) -> list[dict[str, Any]]:
    """One row a block size: the median over rounds of the time of one layer's attention."""
    count, around = case
    rows = decode_rows(count, around)
    times: dict[int, list[float]] = {size: [] for size in BLOCK_SIZES}
    errors: dict[int, str] = {}
    for turn in range(rounds):
        for size in BLOCK_SIZES:
            copies = copies_of(rows, size)
            times[size].append(attention_us(copies))
            if turn == 0:
                errors[size] = error_of(copies[0])
            del copies
            torch.cuda.empty_cache()
    floor = kv_bytes(rows) / bandwidth * 1e6
    return [
        {
            "rows": count,
            "context": around,
            "block_size": size,
            "us": round(statistics.median(times[size]), 2),
            "us_each_round": [round(us, 2) for us in times[size]],
            "floor_us": round(floor, 2),
            "tb_s": round(kv_bytes(rows) / statistics.median(times[size]) / 1e6, 3),
            "relative_error": errors[size],
        }
        for size in BLOCK_SIZES
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode attention by block size on a CUDA device.")
    parser.add_argument("--out", type=Path, help="file for the JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    results = [row for case in CASES for row in measure(case, options.rounds, bandwidth)]
    print(f"{'rows':>6}{'context':>9}{'block':>7}{'us':>9}{'floor us':>10}{'TB/s':>7}  relative error")
    for row in results:
        print(
            f"{row['rows']:>6}{row['context']:>9}{row['block_size']:>7}{row['us']:>9.1f}"
            f"{row['floor_us']:>10.1f}{row['tb_s']:>7.2f}  {row['relative_error']}"
        )
    report = {
        "commit": options.commit or this_commit(),
        "command": "python -m benchmarks.gpu_block_size",
        "machine": machine(),
        "copy_tb_s": round(bandwidth / 1e12, 3),
        "results": results,
    }
    text = json.dumps(report)
    if options.out is not None:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()

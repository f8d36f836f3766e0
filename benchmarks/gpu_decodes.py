"""Decodes of ragged rows and of rows with a common prefix on a CUDA device, row by row and by a work list:
`python -m benchmarks.gpu_decodes --out FILE`.

Owns the cases and their bytes; chooses nothing. Invariant: every time is of a graph of layers with blocks of
their own, more than a cache holds, and of answers that torch in float64 confirms.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_parts import DTYPE, HEAD_DIM, machine, time_us
from benchmarks.gpu_report import this_commit
from paged_kernels import torch_impl
from paged_kernels.testing import relative_error
from paged_kernels.triton_impl import decode_work, paged_attention
from paged_kernels.triton_impl.decode_work import Policy
from paged_kernels.triton_impl.machine import units
from paged_kernels.triton_impl.tiles import Tile, tiles_for

KV_HEADS, BLOCK_SIZE, LAYERS, WIDTH = 8, 16, 28, 2560
COPY = 4.3e12
CHECKED_ROWS, WRONG = 40, 5e-3


@dataclass(frozen=True)
class Case:
    """contexts: tokens of each row. common: of these the first, the same for `together` rows in turn."""

    name: str
    contexts: tuple[int, ...]
    common: int = 0
    together: int = 1

    @property
    def bytes(self) -> int:
        """K and V of one layer, those in common once."""
        shared = self.common * (len(self.contexts) - -(-len(self.contexts) // self.together))
        return (sum(self.contexts) - shared) * KV_HEADS * HEAD_DIM * 2 * DTYPE.itemsize


def ragged(rows: int) -> tuple[int, ...]:
    """Contexts as in the middle of load A: prompts and outputs of 100..1024 tokens, outputs under way."""
    rng = random.Random(rows)
    return tuple(rng.randint(100, 1024) + int(rng.randint(100, 1024) * rng.random()) for _ in range(rows))


def cases() -> Iterator[Case]:
    for rows in (16, 32, 40, 48, 64, 80, 96, 121, 128, 160, 256):
        mean = sum(ragged(rows)) // rows
        yield Case(f"{rows} ragged, mean {mean}", ragged(rows))
        yield Case(f"{rows} equal, mean {mean}", (mean,) * rows)
        yield Case(f"{rows} of 1024", (1024,) * rows)
    yield Case("64 of 2048 in common + 80", (2128,) * 64, 2048, 64)
    yield Case("64 of 512 in common by 16 + 300", (812,) * 64, 512, 16)
    yield Case("128 of 256 in common by 2 + 700", (956,) * 128, 256, 2)


class Layers:
    """One pool of LAYERS layers, and the block tables of one case in it."""

    def __init__(self, most_bytes: int) -> None:
        blocks = most_bytes // (KV_HEADS * HEAD_DIM * 2 * DTYPE.itemsize * BLOCK_SIZE) + 300
        shape = (2, LAYERS, blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
        self.pool = torch.empty(shape, device="cuda", dtype=DTYPE)
        for layer in range(LAYERS):
            self.pool[:, layer].normal_()
        self.blocks = blocks

    def inputs(self, case: Case, group: int) -> list[dict[str, Any]]:
        """Arguments of paged_attention for each layer."""
        ids = iter(torch.randperm(self.blocks).tolist())
        tables = torch.zeros((len(case.contexts), WIDTH), dtype=torch.int32)
        full, prefix = case.common // BLOCK_SIZE, []
        for row, context in enumerate(case.contexts):
            if row % case.together == 0:
                prefix = [next(ids) for _ in range(full)]
            held = -(-context // BLOCK_SIZE)
            tables[row, :held] = torch.tensor(prefix + [next(ids) for _ in range(held - full)])
        rows = len(case.contexts)
        shared = {
            "block_tables": tables.cuda(),
            "cu_query_lens": torch.arange(rows + 1, dtype=torch.int32, device="cuda"),
            "context_lens": torch.tensor(case.contexts, dtype=torch.int32, device="cuda"),
            "scale": HEAD_DIM**-0.5,
            "max_query_len": 1,
            "max_context_len": WIDTH * BLOCK_SIZE,
        }
        query = torch.randn((rows, KV_HEADS * group, HEAD_DIM), device="cuda", dtype=DTYPE)
        return [
            shared | {"query": query, "k_pool": self.pool[0, layer], "v_pool": self.pool[1, layer]}
            for layer in range(LAYERS)
        ]


def exact(inputs: dict[str, Any]) -> Tensor:
    """The last rows' answer in float64."""
    rows = min(CHECKED_ROWS, len(inputs["context_lens"]))
    tables = inputs["block_tables"][-rows:, : int(inputs["context_lens"].max()) // BLOCK_SIZE + 1].long()
    used, places = tables.unique(return_inverse=True)
    return torch_impl.paged_attention(
        inputs["query"][-rows:].double(),
        inputs["k_pool"][used].double(),
        inputs["v_pool"][used].double(),
        places.int(),
        torch.arange(rows + 1, dtype=torch.int32, device="cuda"),
        inputs["context_lens"][-rows:],
        inputs["scale"],
        1,
        tables.shape[1] * BLOCK_SIZE,
    )


def listed(
    layers: list[dict[str, Any]],
    one: dict[str, Any],
    group: int,
    tile: Tile,
    policy: Policy,
    outs: list[Tensor],
) -> None:
    """One step: the list of one layer's rows, and these layers by it."""
    lens = one["block_tables"], one["cu_query_lens"], one["context_lens"]
    work = decode_work.list_work(*lens, BLOCK_SIZE, KV_HEADS, group, tile, policy)
    for inputs, out in zip(layers, outs, strict=True):
        paged_attention.paged_attention(**inputs, out=out, work=work)


def row_by_row(layers: list[dict[str, Any]], outs: list[Tensor]) -> None:
    for inputs, out in zip(layers, outs, strict=True):
        paged_attention.paged_attention(**inputs, out=out)


def measured(case: Case, layers: list[dict[str, Any]], group: int) -> dict[str, Any]:
    """Microseconds a layer both ways, those of the list a step, and what bytes take; a wrong answer's error
    instead of its time.
    """
    outs = [torch.full_like(inputs["query"], float("nan")) for inputs in layers]
    device, programs = torch.device("cuda"), len(case.contexts) * KV_HEADS
    tiles = tiles_for(device, DTYPE, HEAD_DIM, group)
    tile, policy = decode_work.cut_of(tiles, programs, units(device))
    expected = exact(layers[-1])

    def timed(step: Callable[[], None]) -> float | str:
        step()
        error = relative_error(outs[-1][-len(expected) :], expected)
        us = time_us(step, calls=1, replays=6) / LAYERS
        for out in outs:
            out.fill_(float("nan"))
        return round(us, 1) if error < WRONG else f"wrong, {error:.1e}"

    return {
        "case": case.name,
        "group": group,
        "floor": round(case.bytes / COPY * 1e6, 1),
        "list_a_step": round(time_us(lambda: listed([], layers[0], group, tile, policy, [])), 1),
        "row_by_row": timed(lambda: row_by_row(layers, outs)),
        "listed": timed(lambda: listed(layers, layers[0], group, tile, policy, outs)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=Path, help="file for the JSON report")
    parser.add_argument("--commit", default="")
    parser.add_argument("--groups", default="2,4", help="query heads per KV head, comma-separated")
    parser.add_argument("--only", default="", help="beginnings of the cases' names, comma-separated")
    options = parser.parse_args()
    torch.manual_seed(0)
    wanted = [case for case in cases() if case.name.startswith(tuple(options.only.split(",")))]
    layers = Layers(max(case.bytes for case in wanted))
    report = {"commit": options.commit or this_commit(), "machine": machine(), "rows": []}
    with torch.inference_mode():
        for group in map(int, options.groups.split(",")):
            for case in wanted:
                row = measured(case, layers.inputs(case, group), group)
                report["rows"].append(row)
                print(" ".join(f"{value}" for value in row.values()), flush=True)
                options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

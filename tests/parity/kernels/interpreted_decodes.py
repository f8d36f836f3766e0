"""Decodes by a work list under Triton's interpreter: a program, run by test_decodes_interpreted.

Owns the cases and prints what came out as one JSON object; knows no GPU. Invariant: TRITON_INTERPRET=1 is set
before Triton is imported, which is why this does not run inside pytest.
"""

import json
import math
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paged_kernels.testing_prefixes import Decodes, Sizes, draw_decodes, draw_tables, pieces_of
from paged_kernels.triton_impl import decode_work, machine, paged_attention
from paged_kernels.triton_impl.decode_work import DecodeWork, Policy
from paged_kernels.triton_impl.tiles import Tile
from tests.fixtures.prefix_crowd import listing, most_together, prefix_outputs
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import make_runner

DRAWN = 25


def drawn_sizes(rng: random.Random) -> Sizes:
    group, head_dim = rng.choice((1, 2, 3, 4, 16)), rng.choice((8, 16, 20))
    return Sizes(rng.choice((1, 3, 4, 16, 17)), rng.randint(1, 3), group, head_dim, 12, 120)


def drawn_list(rng: random.Random, batch: Decodes) -> DecodeWork:
    """Of any policy, for tiles of few keys, so that short contexts have many."""
    kv_heads = batch.k_pool.shape[2]
    group = batch.query.shape[1] // kv_heads
    policy = Policy(
        programs=rng.choice((1, 2, 4, 8)),
        least_tiles=rng.choice((1, 2, 4)),
        least_shared=rng.choice((16, 32, 64)),
        least_saved=rng.choice((1, 4)),
    )
    tile = Tile(max(16, group) * rng.choice((1, 2)), rng.choice((16, 32)), 4, 2)
    lens = batch.block_tables, batch.cu_query_lens, batch.context_lens
    return decode_work.list_work(*lens, batch.k_pool.shape[1], kv_heads, group, tile, policy)


def keys_read(work: DecodeWork, tokens: int) -> list[int]:
    """For each new token the keys of all pieces that it is a member of."""
    read = [0] * tokens
    pieces, members_of = pieces_of(work)
    for piece, members in zip(pieces.tolist(), members_of.tolist(), strict=True):
        _, count, low, high = piece[:4]
        for token in members[:count]:
            read[token] += high - low
    return read


def drawn_report() -> dict[str, Any]:
    rng, report = random.Random(0), {"errors": [], "shared": 0, "parts": 0, "wrong": []}
    for number in range(DRAWN):
        batch = draw_decodes(rng, drawn_sizes(rng), torch.float32, "cpu", fp8=rng.random() < 0.25)
        work, tokens = drawn_list(rng, batch), len(batch.query)
        out = torch.full_like(batch.query, math.nan)
        paged_attention.paged_attention(**batch.arguments, out=out, work=work)
        report["errors"].append(batch.error_of(out))
        new = (batch.cu_query_lens[1:] - batch.cu_query_lens[:-1]).bool()
        if keys_read(work, tokens) != batch.context_lens[new].tolist():
            report["wrong"].append(f"{number}: not every key once")
        pieces, _ = pieces_of(work)
        report["shared"] += int((pieces[:, 1] > 1).sum())
        report["parts"] += int((pieces[:, 4] >= 0).sum())
    return report


LISTS: dict[str, tuple[list[int], int, int]] = {
    "ragged": (list(range(100, 2050, 59)), 0, 1),
    "one long": ([40960], 0, 1),
    "64 of 2048 in common": ([2128] * 64, 2048, 64),
    "short and long": ([100, 40000] * 30, 0, 1),
    "sevens of 256 in common": (list(range(300, 2700, 8)), 256, 7),
}
"""Contexts, tokens in common, and rows in turn that have them."""


POLICIES = {
    "": (Tile(16, 64, 2, 4), decode_work.POLICY),
    " as of few rows": (Tile(16, 64, 4, 7), decode_work.FEW_POLICY),
}
DRAWN_LISTS = 8


def list_report() -> dict[str, list[str]]:
    """What is wrong with lists for a device of 132 multiprocessors, by case. Rows are in a drawn order."""
    machine.units = lambda _: 132
    rng = random.Random(1)
    return {
        name + kind: _wrong_in(*case, *chosen, rng)
        for name, case in LISTS.items()
        for kind, chosen in POLICIES.items()
    }


def _wrong_in(
    contexts: list[int], common: int, together: int, tile: Tile, policy: Policy, rng: random.Random
) -> list[str]:
    rows, held = len(contexts), [-(-context // 16) for context in contexts]
    tables = torch.arange(rows * max(held), dtype=torch.int32).view(rows, -1)
    for row in range(rows):
        tables[row, : common // 16] = tables[row // together * together, : common // 16]
    order = rng.sample(range(rows), rows)
    lens = torch.arange(rows + 1, dtype=torch.int32)
    mixed = torch.tensor([contexts[row] for row in order], dtype=torch.int32)
    work = decode_work.list_work(tables[order], lens, mixed, 16, 8, 2, tile, policy)
    wrong = _wrong_of(work, mixed.tolist())
    if common and not (pieces_of(work)[0][:, 1] > 1).any():
        wrong.append("nothing in common")
    return wrong


def drawn_list_report() -> list[list[str]]:
    """What is wrong with lists of many drawn rows, some without a new token, for devices of any size."""
    return [_wrong_in_drawn(random.Random(seed)) for seed in range(DRAWN_LISTS)]


def _wrong_in_drawn(rng: random.Random) -> list[str]:
    units, size, kv_heads, group = rng.choice((4, 16, 78, 132)), rng.choice((1, 16, 32)), rng.randint(1, 8), 4
    machine.units = lambda _: units
    blocks, contexts = draw_tables(rng, Sizes(size, kv_heads, group, 0, 150, 600))
    width = max(map(len, blocks))
    tables = torch.tensor([row + [0] * (width - len(row)) for row in blocks], dtype=torch.int32)
    new = [rng.random() < 0.9 for _ in blocks]
    lens = torch.tensor([0, *new]).cumsum(0).int()
    tile, policy = Tile(16, 16, 4, 2), Policy(rng.choice((1, 2, 4)), rng.choice((1, 2, 8)), 64, 4)
    work = decode_work.list_work(
        tables, lens, torch.tensor(contexts).int(), size, kv_heads, group, tile, policy
    )
    return _wrong_of(work, [context for context, here in zip(contexts, new, strict=True) if here])


def _wrong_of(work: DecodeWork, contexts: list[int]) -> list[str]:
    """contexts: of the rows with a new token."""
    if int(work.state) > len(work.pieces):
        return ["more pieces than there is room for"]
    (pieces, members), wrong = pieces_of(work), []
    lines = [
        line for _, count, _, _, first, *_ in pieces.tolist() if first >= 0
        for line in range(first, first + work.heads[1] * count)
    ]  # fmt: skip
    if len(set(lines)) < len(lines) or max(lines, default=0) >= work.lines:
        wrong.append("parts overlap, or end behind their memory")
    if keys_read(work, len(contexts)) != contexts:
        wrong.append("not every key once")
    for token, record in enumerate(work.records.tolist()[: len(contexts)]):
        if record[0] != _parts_of(token, pieces, members):
            wrong.append(f"token {token} has other parts than its record says")
    return wrong


def _parts_of(token: int, pieces: Tensor, members: Tensor) -> int:
    """Pieces of a token that leave partial results."""
    there = torch.arange(members.shape[1]) < pieces[:, 1:2]
    return int((((members == token) & there).any(1) & (pieces[:, 4] >= 0)).sum())


def runner_report() -> dict[str, Any]:
    """The tokens of a crowd with a common prefix: by torch, by a list, and by one that shares nothing.

    The first layer sees whole contexts, the second has a window.
    """
    windowed = {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}
    with tempfile.TemporaryDirectory() as folder:
        made = write_tiny_model(Path(folder) / "model", TinyShape("qwen3", seed=3), windowed)

        def outputs(backend: str) -> list[list[int]]:
            return prefix_outputs(make_runner(made, num_blocks=128, backend=backend), 96, 3)

        found, together = {"torch": outputs("torch")}, {}
        for name, least_shared in (("listed", 32), ("apart", 10**6)):
            with listing(least_shared) as lists:
                found[name] = outputs("triton")
            together[name] = most_together(lists)
    return {"tokens": found, "together": together}


if __name__ == "__main__":
    torch.set_num_threads(1)
    np.seterr(divide="raise")  # a device says nothing, and gives any number
    reports = {"drawn": drawn_report(), "runner": runner_report(), "lists": list_report()}
    reports["drawn lists"] = drawn_list_report()
    print(json.dumps(reports))

"""Drawn decodes whose rows begin with the same blocks, for parity tests of attention by a work list.

Owns the drawing, and what a list says of it; knows no kernel. Invariant: as in testing.py every slot that no
row uses holds NaN.
"""

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paged_kernels import torch_impl
from paged_kernels.testing import as_fp8, relative_error
from paged_kernels.triton_impl.decode_work import DecodeWork


@dataclass(frozen=True)
class Decodes:
    """Arguments of paged_attention for rows of one new token, or none."""

    query: Tensor
    k_pool: Tensor
    v_pool: Tensor
    block_tables: Tensor
    cu_query_lens: Tensor
    context_lens: Tensor
    softcap: float

    @property
    def arguments(self) -> dict[str, Any]:
        most = int(self.context_lens.max())
        scale = 1 / math.sqrt(self.query.shape[2])
        return dict(vars(self)) | {"scale": scale, "max_query_len": 1, "max_context_len": most}

    def error_of(self, out: Tensor) -> float:
        """Relative error of an answer against torch in float64; infinite for NaN."""
        exact = self.arguments | {"query": self.query.double()}
        if self.k_pool.dtype == self.query.dtype:
            exact |= {"k_pool": self.k_pool.double(), "v_pool": self.v_pool.double()}
        return relative_error(out, torch_impl.paged_attention(**exact))


def pieces_of(work: DecodeWork) -> tuple[Tensor, Tensor]:
    """(pieces [n, columns], members [n, block_m]) of a list, in the order in which programs start."""
    count = int(work.state)
    return work.pieces[:count].cpu(), work.members[:count].cpu()


@dataclass(frozen=True)
class Sizes:
    """Of one batch; most_rows and most_context bound what is drawn."""

    block_size: int
    kv_heads: int
    group: int
    head_dim: int
    most_rows: int
    most_context: int


def draw_tables(rng: random.Random, sizes: Sizes) -> tuple[list[list[int]], list[int]]:
    """Blocks and context of each row, in any order: rows of their own, and forks of others at any depth, some
    of which have all but the last block in common with another row, or continue where it ends.
    """
    size, grown = sizes.block_size, 1
    rows: list[tuple[list[int], int]] = []
    for _ in range(rng.randint(1, sizes.most_rows)):
        blocks: list[int] = []
        context = rng.randint(1, sizes.most_context)
        if rows and rng.random() < 0.75:
            blocks, seen = rng.choice(rows)
            full = (seen - 1) // size
            kept = full if rng.random() < 0.4 else rng.randint(0, full)
            blocks, context = blocks[:kept], kept * size + rng.randint(1, max(1, sizes.most_context // 4))
        added = -(-context // size) - len(blocks)
        rows.append((blocks + list(range(grown, grown + added)), context))
        grown += added
    rng.shuffle(rows)
    return [blocks for blocks, _ in rows], [context for _, context in rows]


def draw_decodes(
    rng: random.Random, sizes: Sizes, dtype: torch.dtype, device: str, fp8: bool = False
) -> Decodes:
    """A batch of `draw_tables`' rows, in one of ten of which a row has no new token."""
    tables, contexts = draw_tables(rng, sizes)
    new = [int(rng.random() > 0.1) for _ in tables]
    new[0] = 1
    blocks, size = max(map(max, tables)) + 1, sizes.block_size
    ids = torch.randperm(blocks, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    used = torch.zeros(blocks, dtype=torch.int64)
    width = max(map(len, tables)) + rng.randint(0, 2)
    block_tables = torch.full((len(tables), width), int(ids[0]))
    for row, (mine, context) in enumerate(zip(tables, contexts, strict=True)):
        block_tables[row, : len(mine)] = ids[mine]
        ends = torch.clamp(context - torch.arange(len(mine)) * size, max=size)
        used[ids[mine]] = torch.maximum(used[ids[mine]], ends)
    shape = (2, blocks, size, sizes.kv_heads, sizes.head_dim)
    pools = torch.randn(shape, generator=generator).to(dtype)
    pools[:, torch.arange(size) >= used[:, None]] = math.nan
    pools = pools.to(device)
    k_pool, v_pool = (as_fp8(pool) for pool in pools) if fp8 else pools
    heads = sizes.kv_heads * sizes.group
    return Decodes(
        query=torch.randn((sum(new), heads, sizes.head_dim), generator=generator).to(dtype).to(device),
        k_pool=k_pool,
        v_pool=v_pool,
        block_tables=block_tables.int().to(device),
        cu_query_lens=torch.tensor([0, *new]).cumsum(0).int().to(device),
        context_lens=torch.tensor(contexts).int().to(device),
        softcap=rng.choice((0.0, 0.0, 2.0)),
    )

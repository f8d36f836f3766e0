"""Decodes whose attention reads its list before the kernel in front has ended, on a CUDA device.

Owns a graph as a step has it, replayed with other tables and lengths each time; knows no model. Invariant:
what a replay finds in memory is the list of another step.
"""

import math
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from paged_kernels.triton_impl import decode_work, paged_attention, rotate_store, step_inputs
from paged_kernels.triton_impl.decode_work import DecodeWork

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
LAYERS, BLOCK_SIZE, KV_HEADS, GROUP, HEAD_DIM, WIDTH = 3, 16, 8, 2, 128, 64
MOST = WIDTH * BLOCK_SIZE


def ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32, device="cuda")


class Step:
    """`rows` decodes through LAYERS layers, from the row state's tables to attention, in static memory."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.state = ints(rows, WIDTH)
        self.tables = ints(rows, WIDTH)
        self.order = torch.arange(rows, dtype=torch.int32, device="cuda")
        self.lens = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
        self.contexts = ints(rows) + 1
        self.positions = ints(rows)
        self.slots = ints(rows)
        shape = (2, LAYERS, rows * WIDTH, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
        self.pool = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        self.table = torch.randn((MOST, 2, HEAD_DIM // 2), device="cuda", dtype=torch.bfloat16)
        self.qkv = torch.randn((2, rows, (GROUP + 2) * KV_HEADS * HEAD_DIM), device="cuda")
        self.outs = [
            torch.empty((rows, GROUP * KV_HEADS, HEAD_DIM), dtype=torch.bfloat16, device="cuda")
            for _ in range(LAYERS)
        ]

    def draw(self, rng: random.Random) -> None:
        """Other blocks, lengths and new tokens; NaN in every slot that no row has filled."""
        tables = torch.randperm(self.pool.shape[2]).view(self.rows, WIDTH)
        shared = rng.choice((0, 300))  # tokens with which every row begins
        tables[:, : shared // BLOCK_SIZE] = tables[0, : shared // BLOCK_SIZE]
        edges = [length for length in (1, 2, 16, 17, 128, 129, 640) if length > shared]
        contexts = [rng.choice((*edges, rng.randint(shared + 1, MOST))) for _ in range(self.rows)]
        self.pool.fill_(math.nan)
        for blocks, context in zip(tables.cuda(), contexts, strict=True):
            held = -(-context // BLOCK_SIZE)
            self.pool[:, :, blocks[:held]] = torch.randn_like(self.pool[:, :, blocks[:held]])
            self.pool[:, :, blocks[held - 1], (context - 1) % BLOCK_SIZE :] = math.nan
        self.state.copy_(tables)
        self.contexts.copy_(torch.tensor(contexts))
        self.positions.copy_(self.contexts - 1)
        newest = self.state.gather(1, self.positions[:, None].long() // BLOCK_SIZE)[:, 0]
        self.slots.copy_(newest * BLOCK_SIZE + self.positions % BLOCK_SIZE)
        self.qkv.normal_()

    def run(self, settled: bool) -> None:
        step_inputs.gather_tables(self.state, self.order, self.contexts, BLOCK_SIZE, self.tables)
        work = self._list(settled)
        for layer, out in enumerate(self.outs):
            keys, values = self.pool[0, layer], self.pool[1, layer]
            query = rotate_store.rotate_store(
                *(self.qkv, None, 1e-6, self.table, self.positions, keys, values, self.slots),
                settles=settled and layer == 0,
            )
            paged_attention.paged_attention(
                *(query, keys, values, self.tables, self.lens, self.contexts, 0.1, 1, MOST, out),
                work=work,
            )

    def _list(self, settled: bool) -> DecodeWork:
        lens = self.tables, self.lens, self.contexts
        work = decode_work.decode_work(*lens, self.pool[0, 0], GROUP * KV_HEADS, torch.bfloat16)
        assert work is not None
        assert work.settled
        return replace(work, settled=settled)


@pytest.mark.parametrize("rows", [40, 256])
def test_replays_follow_the_lists_and_tables_of_their_own_step(rows: int) -> None:
    """The same bits as where every kernel waits first, whatever the replay before left behind."""
    rng, step = random.Random(rows), Step(rows)
    step.draw(rng)
    graphs = {}
    for settled in (False, True):
        step.run(settled)
        graphs[settled] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[settled]):
            step.run(settled)
    for _ in range(12):
        step.draw(rng)
        answers = {}
        for settled in (True, False):
            for out in step.outs:
                out.fill_(math.nan)
            graphs[settled].replay()
            answers[settled] = torch.stack(step.outs)
        assert not answers[False].isnan().any()
        assert answers[True].equal(answers[False])

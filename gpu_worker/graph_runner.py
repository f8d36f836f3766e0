"""Steps of fixed sizes, captured once as CUDA graphs and replayed: from packed input to drawn tokens.

Owns the graphs, their static memory and the choice of a bucket; knows no session. Invariant: a replay
computes what the eager pass computes on the same rows, and no call here waits for the device.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_worker.models.fused_decoder import FusedDecoder, FusedStep
from gpu_worker.rows import RowTable
from gpu_worker.staging import Staging
from gpu_worker.step_layout import Bucket, Buckets, StepLayout
from gpu_worker.wire import Plan

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepProgram:
    """One bucket, ready to run. `run` starts it in stream order; then logits [R, vocab] and tokens [R] int32
    hold the results until the next run of any bucket.
    """

    layout: StepLayout
    run: Callable[[], None]
    logits: Tensor
    tokens: Tensor


class GraphRunner:
    """The step programs of one runner.

    tables [rows + 1, W] int32 and last_tokens [rows + 1] int64 are the row state on the device; their last
    row is scratch, for padding.
    """

    def __init__(self, model: FusedDecoder, table: RowTable, tables: Tensor, last_tokens: Tensor) -> None:
        limits = table.limits
        self.buckets = Buckets(limits.max_batch_tokens, limits.max_batch_seqs)
        self._model = model
        self._table = table
        self._tables = tables
        self._last_tokens = last_tokens
        self._null_block = limits.num_blocks
        self._max_context = limits.table_width * limits.block_size
        layouts = {bucket: StepLayout(bucket) for bucket in self.buckets.all()}
        largest = max(layout.size for layout in layouts.values())
        rows = max(bucket.rows for bucket in layouts)
        where = tables.device
        self._packed = torch.zeros(largest, dtype=torch.int32, device=where)
        self._batch_tables = torch.full(
            (rows, limits.table_width), self._null_block, dtype=torch.int32, device=where
        )
        self._tokens = torch.zeros(rows, dtype=torch.int32, device=where)
        self._staging = Staging(largest, where)
        self._programs: dict[Bucket, StepProgram] = {}
        self._layouts = layouts

    def capture(self) -> None:
        """Captures every bucket, the largest first so that the others fit into its memory.

        Raises what the device raises when memory runs out.
        """
        started, memory = time.monotonic(), torch.cuda.graph_pool_handle()
        free, _ = torch.cuda.mem_get_info()
        for number, (bucket, layout) in enumerate(self._layouts.items()):
            self._programs[bucket] = self._captured(layout, memory)
            if number % 8 == 7:
                _log.info("captured %d of %d CUDA graphs", number + 1, len(self._layouts))
        left, _ = torch.cuda.mem_get_info()
        _log.info(
            "captured %d CUDA graphs in %.1f s, %d MiB",
            len(self._programs),
            time.monotonic() - started,
            (free - left) >> 20,
        )

    def rehearse(self) -> None:
        """Launches what `capture` will, for a mode in which launches only ask for their kernels."""
        for layout in self._layouts.values():
            self._pass(layout)

    def prepare_uncaptured(self) -> None:
        """Makes every bucket a program of plain launches: the same arithmetic without graphs, for tests."""
        for bucket, layout in self._layouts.items():
            self._programs[bucket] = self._uncaptured(layout)

    def choose(self, plan: Plan) -> StepProgram | None:
        """The program for a plan, or None when it passes the largest bucket or computes nothing."""
        if not len(plan.rows):
            return None
        bucket = self.buckets.choose(len(plan.input_ids), len(plan.rows), len(plan.sample_rows))
        return None if bucket is None else self._programs.get(bucket)

    def start(self, program: StepProgram, plan: Plan) -> None:
        """Packs, copies and runs a plan that was chosen for this program."""
        buffer = self._staging.take()
        program.layout.write(buffer.array, plan, self._table, self._null_block)
        buffer.send(self._packed, program.layout.size)
        program.run()

    def _pass(self, layout: StepLayout) -> tuple[Tensor, Tensor]:
        """All of one step on the static buffers: (logits, tokens)."""
        fused, inputs, bucket = self._model.fused, layout.views(self._packed), layout.bucket
        hidden = fused.embed_tokens(
            self._model.decoder.embedding,
            inputs["input_ids"],
            inputs["owners"],
            self._last_tokens,
            self._tables,
            inputs["table_rows"],
            inputs["table_offsets"],
            inputs["table_blocks"],
        )
        batch_tables = self._batch_tables[: bucket.rows]
        fused.gather_tables(
            self._tables, inputs["rows"], inputs["context_lens"], self._model.block_size, batch_tables
        )
        step = FusedStep(
            positions=inputs["positions"],
            slot_mapping=inputs["slot_mapping"],
            block_tables=batch_tables,
            cu_query_lens=inputs["cu_query_lens"],
            context_lens=inputs["context_lens"],
            sample_positions=inputs["sample_positions"],
            max_query_len=1 if bucket.decode else min(bucket.tokens, self._max_context),
            max_context_len=self._max_context,
        )
        logits = self._model.logits(hidden, step)
        tokens = self._tokens[: bucket.rows]
        fused.draw_tokens(
            logits,
            inputs["temperatures"],
            inputs["seeds"],
            inputs["output_positions"],
            inputs["sample_rows"],
            self._last_tokens,
            tokens,
        )
        return logits, tokens

    def _captured(self, layout: StepLayout, memory: Any) -> StepProgram:
        """Runs once on padding alone, so that libraries have their memory and every kernel is loaded, then
        captures.
        """
        self._write_padding(layout)
        self._pass(layout)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
            logits, tokens = self._pass(layout)
        return StepProgram(layout, graph.replay, logits, tokens)

    def _uncaptured(self, layout: StepLayout) -> StepProgram:
        rows = layout.bucket.rows
        config = self._model.decoder.config
        kept = torch.empty(
            (rows, config.vocab_size), dtype=self._model.decoder.dtype, device=self._tables.device
        )

        def run() -> None:
            logits, _ = self._pass(layout)
            kept.copy_(logits)

        return StepProgram(layout, run, kept, self._tokens[:rows])

    def _write_padding(self, layout: StepLayout) -> None:
        buffer = self._staging.take()
        layout.write_padding(buffer.array, self._table, self._null_block)
        buffer.send(self._packed, layout.size)

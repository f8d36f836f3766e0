"""Steps of fixed sizes, captured once as CUDA graphs and replayed: from packed input to drawn tokens.

Owns the graphs, their static memory and the choice of a bucket; knows no session. Invariant: a replay
computes what the eager pass computes on the same rows, and no call of a step waits for the device.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_worker.models.fused_decoder import ModelStep
from gpu_worker.models.step_model import StepModel
from gpu_worker.rows import RowTable
from gpu_worker.staging import Staging, StagingBuffer
from gpu_worker.step_layout import Bucket, Buckets, StepLayout
from gpu_worker.wire import Plan

_log = logging.getLogger(__name__)


_ALLOWED = 1e-2
"""Relative difference of logits between a replay and the eager pass; the same kernels run in both."""


class NotCapturableError(Exception):
    """A model's own code does something that no CUDA graph can hold; the message is one line."""


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

    def __init__(self, model: StepModel, table: RowTable, tables: Tensor, last_tokens: Tensor) -> None:
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

    def prepare(self, captured: bool) -> None:
        """Makes a program of every bucket; captured False: of plain launches, the same arithmetic without
        graphs, for tests. Raises what the device raises.
        """
        if captured:
            self._capture()
            return
        for bucket, layout in self._layouts.items():
            self._programs[bucket] = self._uncaptured(layout)

    def _capture(self) -> None:
        """Captures every bucket, the largest first so that the others fit into its memory."""
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
        """Launches what `prepare` will, for a mode in which launches only ask for their kernels.

        From both ends: the kernels that compile longest are those of large mixed steps and of few decodes.
        """
        layouts = deque(self._layouts.values())
        while layouts:
            self._pass(layouts.popleft())
            layouts.reverse()

    def check(self) -> None:
        """Compares replays of the smallest buckets with the same steps launched by themselves, on ids and
        positions that no capture saw. Raises NotCapturableError where they differ: something of the model's
        own code was computed once, at the capture.
        """
        for bucket in (self.buckets.decode[0], self.buckets.mixed[min(self.buckets.mixed)][0]):
            layout = self._layouts[bucket]
            self._write_probe(layout)
            self._programs[bucket].run()
            found = self._programs[bucket].logits[:1].double()
            expected = self._pass(layout)[0][:1].double()
            difference = float((found - expected).norm() / expected.norm().clamp_min(1e-30))
            if not difference <= _ALLOWED:
                raise NotCapturableError(f"a replay's logits differ from the step's by {difference:.1e}")

    def choose(self, plan: Plan) -> StepProgram | None:
        """The program for a plan, or None when it passes the largest bucket or computes nothing."""
        if not len(plan.rows):
            return None
        bucket = self.buckets.choose(len(plan.input_ids), len(plan.rows), len(plan.sample_rows))
        return None if bucket is None else self._programs.get(bucket)

    def pack(self, program: StepProgram, plan: Plan) -> StagingBuffer:
        """Host memory with a plan that was chosen for this program, for `start`."""
        buffer = self._staging.take()
        program.layout.write(buffer.array, plan, self._table, self._null_block)
        return buffer

    def start(self, program: StepProgram, packed: StagingBuffer) -> None:
        """Copies and runs what was packed for this program."""
        packed.send(self._packed, program.layout.size)
        program.run()

    def _pass(self, layout: StepLayout) -> tuple[Tensor, Tensor]:
        """All of one step on the static buffers: (logits, tokens)."""
        fused, inputs, bucket = self._model.fused, layout.views(self._packed), layout.bucket
        entered = self._model.enter(inputs, self._last_tokens, self._tables)
        batch_tables = self._batch_tables[: bucket.rows]
        fused.gather_tables(
            self._tables, inputs["rows"], inputs["context_lens"], self._model.block_size, batch_tables
        )
        step = ModelStep(
            positions=inputs["positions"],
            slot_mapping=inputs["slot_mapping"],
            block_tables=batch_tables,
            cu_query_lens=inputs["cu_query_lens"],
            context_lens=inputs["context_lens"],
            sample_positions=inputs["sample_positions"],
            max_query_len=1 if bucket.decode else min(bucket.tokens, self._max_context),
            max_context_len=self._max_context,
        )
        logits = self._model.logits(entered, step)
        tokens = self._tokens[: bucket.rows]
        fused.draw_tokens(
            logits,
            inputs["temperatures"],
            inputs["filters"],
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
        kept = torch.empty(
            (rows, self._model.vocab_size), dtype=self._model.dtype, device=self._tables.device
        )

        def run() -> None:
            logits, _ = self._pass(layout)
            kept.copy_(logits)

        return StepProgram(layout, run, kept, self._tokens[:rows])

    def _write_probe(self, layout: StepLayout) -> None:
        """One row whose context is whatever the null block holds, and that stores nothing."""
        self._write_padding(layout)
        inputs, tokens = layout.views(self._packed), layout.bucket.tokens
        places = torch.arange(tokens, dtype=torch.int32, device=self._packed.device)
        inputs["input_ids"].copy_((places * 37 + 11) % self._model.vocab_size)
        inputs["positions"].copy_(places + 1 if tokens == 1 else places)
        inputs["cu_query_lens"][1:] = tokens
        inputs["context_lens"][0] = int(places[-1]) + 1
        inputs["sample_positions"][0] = tokens - 1

    def _write_padding(self, layout: StepLayout) -> None:
        buffer = self._staging.take()
        layout.write_padding(buffer.array, self._table, self._null_block)
        buffer.send(self._packed, layout.size)

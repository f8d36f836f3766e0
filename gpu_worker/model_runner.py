"""Runs one plan: block operations, forward pass, sampling; the device is only waited for in `PendingStep`.

Owns the order in which a step touches the device; knows no session and no wire. Invariant: a plan is checked
whole before anything of it reaches the device.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker.attention import StepAttention
from gpu_worker.device import Device, Download, Marker
from gpu_worker.input_buffers import InputBuffers, StepTensors
from gpu_worker.kv_pool import KvPool
from gpu_worker.models.cpu_decoder import CpuDecoder
from gpu_worker.models.decoder import Decoder
from gpu_worker.rows import Limits, RowTable
from gpu_worker.sampler import sample
from gpu_worker.wire import Int32Array, Plan
from paged_kernels.dispatch import Kernels

_WARM_UP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """token_ids [S], -1 where the row failed; failed_rows by id; times in seconds on the device's own clock.

    sample_seconds is part of forward_seconds. gap_seconds: since the end of the step before, 0 for the first.
    """

    token_ids: Int32Array
    failed_rows: tuple[int, ...]
    forward_seconds: float
    sample_seconds: float
    block_move_seconds: float
    gap_seconds: float


@dataclass(frozen=True, slots=True)
class _Marks:
    previous_end: Marker | None
    start: Marker
    moved: Marker
    forwarded: Marker
    end: Marker


class PendingStep:
    """A step that was launched. `wait` blocks until the device has finished it."""

    def __init__(self, sample_rows: Int32Array, tokens: Download | None, marks: _Marks) -> None:
        self._sample_rows = sample_rows
        self._tokens = tokens
        self._marks = marks

    def wait(self) -> StepOutcome:
        """Called once, from the thread that answers. Raises what the device raises."""
        marks = self._marks
        marks.end.wait()
        tokens = np.empty(0, np.int32) if self._tokens is None else self._tokens.read().astype(np.int32)
        return StepOutcome(
            token_ids=tokens,
            failed_rows=tuple(int(row) for row in self._sample_rows[tokens < 0]),
            forward_seconds=marks.end.seconds_since(marks.moved),
            sample_seconds=marks.end.seconds_since(marks.forwarded),
            block_move_seconds=marks.moved.seconds_since(marks.start),
            gap_seconds=max(marks.start.seconds_since(marks.previous_end), 0.0)
            if marks.previous_end
            else 0.0,
        )


class ModelRunner:
    """One model on one pool, for one session at a time. Not thread-safe: only the launching thread
    calls it.
    """

    def __init__(
        self, device: Device, decoder: Decoder | CpuDecoder, pool: KvPool, kernels: Kernels, limits: Limits
    ) -> None:
        self.device = device
        self.decoder = decoder
        self.pool = pool
        self.kernels = kernels
        self.rows = RowTable(limits)
        self._buffers = InputBuffers(device, self.rows)
        self._scale = decoder.config.head_dim**-0.5
        self._last_end: Marker | None = None

    def reset(self) -> None:
        """Waits for the device and drops every row: a new session begins, or the scheduler is gone."""
        self.device.synchronize()
        self.rows.clear()
        self._last_end = None

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs a decode and a prefill through the null block, so that real steps find kernels compiled."""
        for tokens in (1, min(_WARM_UP_TOKENS, self.rows.limits.max_model_len)):
            attend = self._null_attention(tokens)
            positions = torch.arange(tokens, device=self.device.torch_device)
            hidden = self.decoder.forward(torch.zeros_like(positions), positions, attend)
            sample(self.decoder.logits(hidden[-1:]), None)
        self.device.synchronize()

    def _null_attention(self, tokens: int) -> StepAttention:
        """One row of that many tokens, all of whose table entries are the null block."""
        block_size, null = self.pool.block_size, self.pool.num_blocks

        def tensor(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=self.device.torch_device)

        return StepAttention(
            pool=self.pool,
            kernels=self.kernels,
            scale=self._scale,
            slot_mapping=tensor([null * block_size + position % block_size for position in range(tokens)]),
            block_tables=tensor([null] * -(-tokens // block_size)).view(1, -1),
            cu_query_lens=tensor([0, tokens]),
            context_lens=tensor([tokens]),
            max_query_len=tokens,
            max_context_len=tokens,
        )

    @torch.inference_mode()
    def launch(self, plan: Plan) -> PendingStep:
        """Starts a step. Raises PlanError before the device is touched; else what the device raises."""
        self.rows.apply(plan)
        start = self.device.mark()
        step = self._buffers.upload(plan)
        self._move_blocks(plan, step)
        moved = self.device.mark()
        logits = self._forward(plan, step)
        forwarded = self.device.mark()
        tokens = None if logits is None else self._sample(logits, step)
        end = self.device.mark()
        marks = _Marks(self._last_end, start, moved, forwarded, end)
        self._last_end = end
        return PendingStep(plan.sample_rows, tokens, marks)

    def _move_blocks(self, plan: Plan, step: StepTensors) -> None:
        if len(plan.zero_blocks):
            self.kernels.zero_blocks(self.pool.tensor, step.zero_blocks)
        if len(plan.copy_pairs):
            self.kernels.copy_blocks(self.pool.tensor, step.copy_pairs)

    def _forward(self, plan: Plan, step: StepTensors) -> Tensor | None:
        """Logits [S, vocab], or None when nothing is sampled."""
        if not len(plan.rows):
            return None
        attend = StepAttention(
            pool=self.pool,
            kernels=self.kernels,
            scale=self._scale,
            slot_mapping=step.slot_mapping,
            block_tables=step.block_tables,
            cu_query_lens=step.cu_query_lens,
            context_lens=step.context_lens,
            max_query_len=int(plan.query_lens.max()),
            max_context_len=int(plan.context_lens.max()),
        )
        hidden = self.decoder.forward(step.input_ids, step.positions, attend)
        if not len(plan.sample_rows):
            return None
        return self.decoder.logits(hidden.index_select(0, step.sample_positions))

    def _sample(self, logits: Tensor, step: StepTensors) -> Download:
        tokens, bad = sample(logits, step.samples)
        self._buffers.remember(step.sample_rows, tokens.masked_fill(bad, 0))
        return self.device.download(tokens.masked_fill(bad, -1))

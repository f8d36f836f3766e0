"""What a step of a fixed size asks of a model, and any model in that form.

Owns the surface between the graphs and the layers; knows no bucket and no row. Invariant: nothing here waits
for the device, so that what a model's own code does decides whether its steps can be captured.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.attention import StepAttention
from gpu_worker.kv_pool import KvPool
from gpu_worker.models.fused_decoder import ModelStep
from gpu_worker.models.model import Model
from gpu_worker.models.registry import ModelShape
from paged_kernels.dispatch import FusedKernels, Kernels


class StepModel(Protocol):
    """A model over its pool. fused: the kernels of a step's front and end."""

    @property
    def fused(self) -> FusedKernels: ...

    @property
    def block_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def enter(self, inputs: Mapping[str, Tensor], last_tokens: Tensor, tables: Tensor) -> Tensor:
        """Enters the step's table entries into tables, and returns what `logits` takes for its T tokens.

        inputs: input_ids, owners, table_rows, table_offsets, table_blocks, each [T] int32; an id of -1 means
        last_tokens[owner].
        """

    def logits(self, entered: Tensor, step: ModelStep) -> Tensor:
        """Logits [S, vocab]; K and V of all tokens are stored."""


def attention_of(config: ModelShape, pool: KvPool, kernels: Kernels, step: ModelStep) -> StepAttention:
    """What a model's own code calls for its attention in this step."""
    return StepAttention(
        pool=pool,
        kernels=kernels,
        scale=config.attention_scale,
        slot_mapping=step.slot_mapping,
        block_tables=step.block_tables,
        cu_query_lens=step.cu_query_lens,
        context_lens=step.context_lens,
        max_query_len=step.max_query_len,
        max_context_len=step.max_context_len,
        softcap=config.attention_softcap,
        windows=config.windows,
    )


class PlainStepModel:
    """Any model, by its own code between the paged kernels."""

    def __init__(self, model: Model, pool: KvPool, kernels: Kernels, fused: FusedKernels) -> None:
        self.fused = fused
        self.block_size = pool.block_size
        self.vocab_size = model.config.vocab_size
        self.dtype = model.dtype
        self._model = model
        self._pool = pool
        self._kernels = kernels

    def enter(self, inputs: Mapping[str, Tensor], last_tokens: Tensor, tables: Tensor) -> Tensor:
        """Token ids [T] int64."""
        where = (inputs["table_rows"].long(), inputs["table_offsets"].long())
        tables.index_put_(where, inputs["table_blocks"])
        given = inputs["input_ids"].long()
        return torch.where(given < 0, last_tokens.index_select(0, inputs["owners"]), given)

    def logits(self, entered: Tensor, step: ModelStep) -> Tensor:
        attend = attention_of(self._model.config, self._pool, self._kernels, step)
        hidden = self._model.forward(entered, step.positions.long(), attend)
        return self._model.logits(hidden.index_select(0, step.sample_positions))

"""What a model runner asks of whatever runs the layers.

Owns that surface; knows no implementation. Invariant: hidden states of one token depend on that token, its
position and its context alone.
"""

from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.attention import StepAttention
from gpu_worker.models.registry import ModelShape


class Model(Protocol):
    """A loaded model: a decoder, compiled or not, or one of transformers."""

    device: torch.device
    dtype: torch.dtype

    @property
    def config(self) -> ModelShape: ...

    @property
    def weight_bytes(self) -> int: ...

    def forward(self, input_ids: Tensor, positions: Tensor, attend: StepAttention) -> Tensor:
        """What `logits` takes, [T, hidden], of input_ids and positions [T] int64."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [S, vocab] of hidden states [S, hidden]."""

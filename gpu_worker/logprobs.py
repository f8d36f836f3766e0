"""Log-probabilities of tokens, from raw logits.

Owns their arithmetic and their way to the host; knows neither rows nor plans. Invariant: a value is the
log-softmax of the model's own logits, before bias, penalties, temperature and filters, and never below
`LOWEST`, which stands for minus infinity.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device import Download
from gpu_worker.wire import TokenLogprobs

LOWEST = -9999.0
PIECE = 128
"""Positions whose logits are in memory at once, where a prompt has many."""


def logprobs_of(logits: Tensor, tokens: Tensor, top: int) -> Tensor:
    """[N, 2, 1 + top] int32 of logits [N, vocab] and tokens [N] int64: ids, then the bits of float32 values.

    The first entry is the token itself, then come the likeliest ones, in falling order.
    """
    values = logits if logits.dtype == torch.float64 else logits.float()
    values = values.log_softmax(-1)
    likely, ids = values.topk(top, dim=-1)
    own = values.gather(1, tokens[:, None])
    all_values = torch.cat((own, likely), 1).float().clamp(min=LOWEST)
    all_ids = torch.cat((tokens[:, None], ids), 1).int()
    return torch.stack((all_ids, all_values.view(torch.int32)), 1)


def prompt_logprobs_of(head: Callable[[Tensor], Tensor], hidden: Tensor, tokens: Tensor, top: int) -> Tensor:
    """The same of hidden states [N, hidden] and the head that makes logits of them, a piece at a time."""
    pieces = zip(torch.split(hidden, PIECE), torch.split(tokens, PIECE), strict=True)
    return torch.cat([logprobs_of(head(part), ids, top) for part, ids in pieces])


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """Values on their way to the host: [N, 2, width] int32, flat."""

    width: int
    download: Download

    def read(self) -> TokenLogprobs:
        """Legal once a later marker was waited for."""
        packed: npt.NDArray[np.int32] = self.download.read().astype(np.int32, copy=False)
        packed = packed.reshape(-1, 2, self.width)
        return TokenLogprobs(packed[:, 0].copy(), packed[:, 1].copy().view(np.float32))

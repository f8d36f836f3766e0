"""A mixture of experts: a router sends each token to a few of many feed-forward blocks.

Owns the choice and the weighted sum (Shazeer et al., arXiv 1701.06538; as in Mixtral, arXiv 2401.04088);
knows no names of weights. Invariant: a token's result depends on that token alone, and its experts are added
in ascending order.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.models import layers


@dataclass(slots=True)
class Experts:
    """E experts of size I: router [E, hidden], gate_up [E, 2 I, hidden], down [E, hidden, I]."""

    router: Tensor
    gate_up: Tensor
    down: Tensor


def route(hidden: Tensor, router: Tensor, chosen: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """The `chosen` most probable experts of each token in ascending order: weights [T, C] and ids [T, C].

    normalize: the weights add up to 1. Their dtype is hidden's.
    """
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    weights, ids = F.linear(hidden, router).softmax(-1, dtype=wide).topk(chosen, dim=-1)
    ids, order = ids.sort(-1)
    weights = weights.gather(-1, order)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.to(hidden.dtype), ids


def mixture(hidden: Tensor, experts: Experts, chosen: int, normalize: bool, activation: str) -> Tensor:
    """hidden [T, hidden] -> [T, hidden]: the `chosen` most probable experts of each token, weighted.

    Waits for the device, to learn which experts are needed at all.
    """
    weights, ids = route(hidden, experts.router, chosen, normalize)
    result = torch.zeros_like(hidden)
    for expert in sorted(set(ids.flatten().tolist())):
        tokens, place = (ids == expert).nonzero(as_tuple=True)
        gated = layers.gated(F.linear(hidden[tokens], experts.gate_up[expert]), activation)
        added = F.linear(gated, experts.down[expert]) * weights[tokens, place, None]
        result.index_add_(0, tokens, added)
    return result

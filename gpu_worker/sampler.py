"""From logits to tokens: greedy, temperature, top-k, top-p, min-p, each row with its own random state.

Owns the arithmetic of sampling; knows neither rows' history nor the plan. Invariant: a row's token
depends on its logits, its parameters and the pair (seed, output position), never on its neighbours.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_OFF = float("-inf")


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Parameters of the S samples, on the logits' device. Greedy rows (temperature 0) may be among them.

    parameters [S, 4] float64: temperature, top_p, min_p, top_k (0: all). draws [S] float64: `uniform` of
    each row's seed and output position, made on the host. random: index [N] int64 of the rows
    that are not greedy. max_top_k: the greatest top_k among them; all_top_k: each of them has one;
    any_top_p: one is below 1.
    """

    parameters: Tensor
    draws: Tensor
    random: Tensor | None
    max_top_k: int
    all_top_k: bool
    any_top_p: bool


def sample(logits: Tensor, rows: SampleRows | None) -> tuple[Tensor, Tensor]:
    """Tokens [S] int64 and bad [S] bool of logits [S, vocab]; rows None: all greedy.

    bad: the row holds NaN or +inf, or all of it is -inf; its token means nothing. Greedy takes the lowest
    id among equal logits. Order of the filters: temperature, top_k, top_p, min_p (that of transformers).
    """
    peak, greedy = logits.max(dim=-1)
    bad = ~torch.isfinite(peak)
    if rows is None or rows.random is None:
        return greedy, bad
    index = rows.random
    chosen = _sample_random(logits.index_select(0, index), peak.index_select(0, index), rows, index)
    return greedy.index_copy(0, index, chosen), bad


def _sample_random(logits: Tensor, peak: Tensor, rows: SampleRows, index: Tensor) -> Tensor:
    temperature, top_p, min_p, top_k = rows.parameters.index_select(0, index).unbind(1)
    scaled = (logits.double() - peak.double()[:, None]) / temperature[:, None]
    scaled = torch.where(torch.isfinite(peak)[:, None], scaled, 0.0)
    if rows.max_top_k or rows.any_top_p:
        scaled = _keep_likely(scaled, top_k.long(), top_p, rows)
    scaled = scaled.masked_fill_(scaled < min_p.log()[:, None], _OFF)
    mass = scaled.exp_().cumsum(-1)
    total = mass[:, -1:]
    draw = rows.draws.index_select(0, index)[:, None]
    target = torch.minimum(draw * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(mass, target, right=True).squeeze(1)


def _keep_likely(scaled: Tensor, top_k: Tensor, top_p: Tensor, rows: SampleRows) -> Tensor:
    """Masks what top_k and top_p leave out. Tokens tied with the last one kept are kept too."""
    vocab = scaled.shape[1]
    width = min(rows.max_top_k, vocab) if rows.all_top_k or not rows.any_top_p else vocab
    ordered = scaled.topk(width, dim=-1).values
    kept = torch.where(top_k > 0, top_k, vocab)
    if rows.any_top_p:
        ranks = torch.arange(width, device=scaled.device)
        likely = ordered.masked_fill(ranks >= kept[:, None], _OFF).softmax(-1)
        before = likely.cumsum(-1) - likely
        nucleus = (before < top_p[:, None]).sum(-1)
        kept = torch.where(top_p < 1, torch.minimum(kept, nucleus), kept)
    last = ordered.gather(1, (kept.clamp(1, width) - 1)[:, None])
    last = torch.where((kept < vocab)[:, None], last, _OFF)
    return scaled.masked_fill_(scaled < last, _OFF)


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """One number in [0, 1) a row, float64: a counter-based generator keyed (seed, output position).

    Two rounds of SplitMix64's finalizer (Steele, Lea and Flood, OOPSLA 2014), in wrapping int64
    arithmetic, which is the same on every device. seeds, positions [N] int64.
    """
    state = _mix(seeds + _signed(_GOLDEN))
    state = _mix(state + (positions + 1) * _signed(_GOLDEN))
    return _shift(state, 11).double() * 2.0**-53


def _mix(state: Tensor) -> Tensor:
    for shift, factor in _MIX:
        state = (state ^ _shift(state, shift)) * _signed(factor)
    return state ^ _shift(state, 31)


def _shift(state: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value

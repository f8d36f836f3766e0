"""The end of a step: from logits to tokens, counts and log-probabilities, and on to the host.

Owns which samples are drawn how; knows neither the forward pass nor the wire. Invariant: how a row is drawn
depends on what it asks for alone, so that its token is the same beside any neighbours; and only samples under
a grammar wait for the device, for the tokens of the steps before.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.adjustments import Adjustments
from gpu_worker.device import Device, Download
from gpu_worker.grammars import GrammarCompiler, Grammars
from gpu_worker.input_buffers import InputBuffers
from gpu_worker.logprobs import PendingLogprobs, logprobs_of
from gpu_worker.rows import RowTable
from gpu_worker.sampler import sample
from gpu_worker.wire import Plan

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step sampled, on its way to the host: tokens [S], -1 where the row failed. barred: rows whose
    grammar allows no token.
    """

    tokens: Download
    logprobs: PendingLogprobs | None
    barred: frozenset[int] = frozenset()


class SampleStage:
    """Draws for the rows of `table`, whose state on the device is in `buffers`."""

    def __init__(
        self, device: Device, table: RowTable, buffers: InputBuffers, compiler: GrammarCompiler | None
    ) -> None:
        limits = table.limits
        self._device = device
        self._table = table
        self._buffers = buffers
        self._adjustments = Adjustments(device, limits.max_batch_seqs, limits.vocab_size)
        self._grammars = Grammars(compiler, limits.vocab_size)
        self._bits = torch.arange(32, dtype=torch.int32, device=device.torch_device)

    def enter(self, plan: Plan) -> None:
        """Takes in the rows that a checked plan releases and sets up."""
        self._adjustments.release(plan.released_rows)
        self._grammars.release(plan.released_rows)
        for setup in plan.setups:
            self._adjustments.set_up(setup)
            self._grammars.set_up(setup)

    def clear(self) -> None:
        """Forgets every row."""
        self._adjustments.clear()
        self._grammars.clear()

    def draw(self, plan: Plan, logits: Tensor, sample_rows: Tensor) -> Drawn:
        """Draws all samples from logits [S, vocab]; sample_rows: [S] int64, the plan's, on the device."""
        tokens, bad = sample(logits, self._buffers.samples(plan))
        tokens = tokens.masked_fill(bad, -1)
        asks, barred = self._table.asks, frozenset[int]()
        if asks.anybody:
            places = asks.changed(plan.sample_rows, self._table.output_positions(plan))
            if len(places):
                tokens, barred = self._draw_again(plan, logits, tokens, places)
        self._buffers.remember(sample_rows, tokens.clamp(min=0))
        return self._drawn(plan, logits, tokens, barred)

    def draw_rest(self, plan: Plan, logits: Tensor, tokens: Tensor) -> Drawn:
        """Draws what a graph cannot: its tokens [S] int32 stand where a row's own logits are drawn from."""
        asks, barred = self._table.asks, frozenset[int]()
        if not asks.anybody:
            return Drawn(self._device.download(tokens), None)
        places = asks.changed(plan.sample_rows, self._table.output_positions(plan))
        if len(places):
            tokens, barred = self._draw_again(plan, logits, tokens, places)
            rows = self._device.upload(plan.sample_rows[places]).long()
            again = tokens.index_select(0, self._index(places)).clamp(min=0).long()
            self._buffers.remember(rows, again)
        return self._drawn(plan, logits, tokens, barred)

    def _draw_again(
        self, plan: Plan, logits: Tensor, tokens: Tensor, places: Places
    ) -> tuple[Tensor, frozenset[int]]:
        """tokens with those at `places` drawn from their own logits, changed where their rows ask for it; and
        the rows that a grammar leaves nothing.
        """
        table = self._table
        index = self._index(places)
        own = logits.index_select(0, index)
        own = own if own.dtype == torch.float64 else own.float()
        positions = table.output_positions(plan)[places]
        rows = plan.sample_rows[places]
        changed, slots = table.asks.adjusted(rows, positions), None
        if len(changed):
            slots, at = self._adjustments.slots(rows[changed]), self._index(changed)
            own.index_copy_(
                0, at, self._adjustments.apply(own.index_select(0, at), slots, positions[changed])
            )
        constrained, barred = table.asks.constrained(rows), frozenset[int]()
        if len(constrained):
            barred = self._mask(own, rows[constrained].tolist(), constrained)
        again, bad = sample(own, self._buffers.samples(plan, places))
        bad |= tokens.index_select(0, index) < 0  # what a mask hides was bad all the same
        again = again.masked_fill(bad, -1)
        if slots is not None:
            self._adjustments.count(slots, again.index_select(0, at).clamp(min=0))
        if len(constrained):
            tokens_of_them = self._device.download(again.index_select(0, self._index(constrained)))
            self._grammars.sampled(rows[constrained].tolist(), tokens_of_them, self._device.mark())
        return tokens.index_copy(0, index, again.to(tokens.dtype)), barred

    def _mask(self, logits: Tensor, rows: list[int], places: Places) -> frozenset[int]:
        """Leaves the logits [n, vocab] at `places` only what these rows' grammars allow, and returns the rows
        that are left nothing; waits for the tokens of the steps before, which the forward pass of this one
        need not.
        """
        words = np.ascontiguousarray(self._grammars.masks(rows))
        packed = self._device.upload(words.reshape(-1)).view(words.shape)
        allowed = (packed[:, :, None] >> self._bits) & 1
        barred = allowed.flatten(1)[:, : logits.shape[1]] == 0
        at = self._index(places)
        logits.index_copy_(0, at, logits.index_select(0, at).masked_fill_(barred, float("-inf")))
        return frozenset(rows[place] for place in np.flatnonzero(~words.any(axis=1)))

    def _drawn(self, plan: Plan, logits: Tensor, tokens: Tensor, barred: frozenset[int]) -> Drawn:
        asks = self._table.asks
        places = asks.with_logprobs(plan.sample_rows)
        logprobs: PendingLogprobs | None = None
        if len(places):
            index = self._index(places)
            own = tokens.index_select(0, index).clamp(min=0).long()
            top = int(asks.logprobs[plan.sample_rows[places]].max())
            packed = logprobs_of(logits.index_select(0, index), own, top)
            logprobs = PendingLogprobs(1 + top, self._device.download(packed.flatten()))
        return Drawn(self._device.download(tokens), logprobs, barred)

    def _index(self, places: Places) -> Tensor:
        return self._device.upload(places.astype(np.int32)).long()

"""Changed logits: bias, suppressed ids and penalties of the rows that ask for them.

Owns the rows' token counts and biases on the device; knows neither plans nor draws. Invariant: counts are
written where tokens are drawn, on the device and in its order, so that a step never waits for the host to
learn a token.

Order and definitions: bias and suppressed ids are added first (OpenAI's logit_bias; vLLM's order), then the
repetition penalty divides positive and multiplies negative logits of tokens in prompt or output (Keskar et
al., CTRL, 2019, as in transformers), then frequency times count and presence are subtracted for tokens of the
output (OpenAI).
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device import Device
from gpu_worker.wire import Int32Array, RowSetup

_FIRST_SLOTS = 8
_FOR_EVER = 2**31 - 1


class Adjustments:
    """Rows that ask hold a slot; memory is taken when the first of them comes, and grows by doubling.

    counts [C, V] int32: output tokens; in_prompt [C, V] bool; penalties [C, 3]: presence, frequency,
    repetition; bias ids, values, until [C, W]: each is added at output positions below `until`.
    """

    def __init__(self, device: Device, max_rows: int, vocab_size: int) -> None:
        self._device = device
        self._slots = np.full(max_rows, -1, np.int32)
        self._free: list[int] = []
        self._vocab_size = vocab_size
        self._counts = self._empty(0, vocab_size, torch.int32)
        self._in_prompt = self._empty(0, vocab_size, torch.bool)
        self._penalties = self._empty(0, 3, torch.float32)
        self._ids = self._empty(0, 1, torch.int64)
        self._values = self._empty(0, 1, torch.float32)
        self._until = self._empty(0, 1, torch.int64)

    def set_up(self, setup: RowSetup) -> None:
        """Gives the row a slot with its history, if it asks for one."""
        given = setup.sampling
        if not given.adjusts:
            return
        if not self._free:
            self._grow()
        slot = self._slots[setup.row] = self._free.pop()
        self._counts[slot].zero_()
        self._in_prompt[slot].zero_()
        if len(setup.prompt_ids):
            self._in_prompt[slot].index_fill_(0, self._upload(setup.prompt_ids), True)
        if len(setup.output_ids):
            ids = self._upload(setup.output_ids)
            self._counts[slot].index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
        penalties = (given.presence_penalty, given.frequency_penalty, given.repetition_penalty)
        self._penalties[slot].copy_(self._device.upload(np.array(penalties, np.float64)))
        self._set_bias(slot, setup)

    def _set_bias(self, slot: int, setup: RowSetup) -> None:
        given = setup.sampling
        count, suppressed = len(given.bias_ids), len(given.suppressed_ids)
        self._widen(count + suppressed)
        packed = np.zeros((3, self._ids.shape[1]), np.float64)
        packed[0, : count + suppressed] = [*given.bias_ids, *given.suppressed_ids]
        packed[1, : count + suppressed] = [*given.bias_values, *[-np.inf] * suppressed]
        packed[2, : count + suppressed] = [*[_FOR_EVER] * count, *[given.min_tokens] * suppressed]
        ids, values, until = self._device.upload(packed).unbind(0)
        self._ids[slot].copy_(ids)
        self._values[slot].copy_(values)
        self._until[slot].copy_(until)

    def release(self, rows: Int32Array) -> None:
        for row in rows.tolist():
            if self._slots[row] >= 0:
                self._free.append(int(self._slots[row]))
                self._slots[row] = -1

    def clear(self) -> None:
        self.release(np.flatnonzero(self._slots >= 0).astype(np.int32))

    def slots(self, rows: Int32Array) -> Tensor:
        """[n] int64 on the device: the slots of rows that have one."""
        return self._upload(self._slots[rows])

    def apply(self, logits: Tensor, slots: Tensor, output_positions: npt.NDArray[np.int64]) -> Tensor:
        """The changed logits [n, vocab] (float32 or float64) of rows in these slots [n]; the given ones may
        be overwritten.
        """
        at = self._upload(output_positions.astype(np.int32))[:, None]
        values = torch.where(at < self._until.index_select(0, slots), self._values.index_select(0, slots), 0)
        logits.scatter_add_(1, self._ids.index_select(0, slots), values.to(logits.dtype))
        counts = self._counts.index_select(0, slots)
        used = counts > 0
        presence, frequency, repetition = self._penalties.index_select(0, slots)[:, :, None].unbind(1)
        seen = used | self._in_prompt.index_select(0, slots)
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(seen, repeated, logits)
        return logits - frequency * counts - presence * used

    def count(self, slots: Tensor, tokens: Tensor) -> None:
        """Counts one drawn token [n] for each of these slots [n], no slot twice."""
        self._counts[slots, tokens] += 1

    def _upload(self, values: Int32Array) -> Tensor:
        return self._device.upload(np.array(values, np.int32)).long()

    def _empty(self, slots: int, width: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros((slots, width), dtype=dtype, device=self._device.torch_device)

    def _grow(self) -> None:
        held = len(self._counts)
        total = max(_FIRST_SLOTS, 2 * held)
        self._free += range(total - 1, held - 1, -1)
        for name in ("_counts", "_in_prompt", "_penalties", "_ids", "_values", "_until"):
            old: Tensor = getattr(self, name)
            new = self._empty(total, old.shape[1], old.dtype)
            new[:held] = old
            setattr(self, name, new)

    def _widen(self, width: int) -> None:
        held = self._ids.shape[1]
        if width <= held:
            return
        for name in ("_ids", "_values", "_until"):
            old: Tensor = getattr(self, name)
            new = self._empty(len(old), max(width, 2 * held), old.dtype)
            new[:, :held] = old
            setattr(self, name, new)

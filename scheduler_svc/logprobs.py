"""Log-probabilities of an answer, by sequence.

Owns which rows of a session ask for them, and the decoding; knows neither clients nor the core. Invariant:
values reach the sequence that the row stood for when the step was planned, however rows have been used since.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.plan import Int32Array, StepPlan

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


class TokenValues(NamedTuple):
    """Of one position: the token itself first, then the likeliest ones. ids [W], values [W]."""

    ids: list[int]
    values: list[float]


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Of the prompt tokens [first, first + len(positions)) of a sequence."""

    seq_id: int
    first: int
    positions: list[TokenValues]


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """What one answer says: of the sampled tokens by sequence, and parts of prompts."""

    samples: dict[int, TokenValues]
    prompts: tuple[PromptPart, ...]


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Prompt tokens [first, first + count) of a row and its sequence that a step computes."""

    row: int
    seq_id: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What a step has to report: (row, sequence) of its samples that ask, and spans of prompts, in order."""

    samples: tuple[tuple[int, int], ...]
    prompts: tuple[PromptSpan, ...]

    @property
    def rows(self) -> list[int]:
        return [*(row for row, _ in self.samples), *(span.row for span in self.prompts)]


class AskingRows:
    """The rows of one session that ask for log-probabilities, and the sequences they stand for."""

    def __init__(self) -> None:
        self._samples: dict[int, int] = {}
        self._prompts: dict[int, tuple[int, int]] = {}  # sequence, prompt length

    def asked(self, plan: StepPlan) -> Asked | None:
        """Takes a plan's rows in; what the plan's answer has to report, None for nothing."""
        if plan.released_rows.size and (self._samples or self._prompts):
            for row in plan.released_rows.tolist():
                self._samples.pop(row, None)
                self._prompts.pop(row, None)
        for setup in plan.setups:
            if setup.sampling.logprobs is not None:
                self._samples[setup.row] = setup.seq_id
            if setup.sampling.prompt_logprobs is not None:
                self._prompts[setup.row] = (setup.seq_id, setup.prompt_len)
        if not (self._samples or self._prompts):
            return None
        rows = plan.sample_rows.tolist() if self._samples else []
        samples = tuple((row, self._samples[row]) for row in rows if row in self._samples)
        return Asked(samples, tuple(self._spans(plan)) if self._prompts else ())

    def _spans(self, plan: StepPlan) -> Iterator[PromptSpan]:
        """A chunk tells of the tokens after its own, as far as they are the prompt's."""
        lens = zip(plan.rows.tolist(), plan.query_lens.tolist(), plan.context_lens.tolist(), strict=True)
        for row, new, context in lens:
            if row in self._prompts:
                seq_id, prompt_len = self._prompts[row]
                first, last = context - new + 1, min(context + 1, prompt_len)
                if first < last:
                    yield PromptSpan(row, seq_id, first, last - first)


def decode_logprobs(message: worker_pb2.StepResult, asked: Asked) -> StepLogprobs | None:
    """What the answer reports; None when it does not fit what was asked."""
    samples: dict[int, TokenValues] = {}
    if asked.samples:
        found = _positions(message.logprobs)
        if found is None or len(found) != len(asked.samples):
            return None
        samples = {seq_id: values for (_, seq_id), values in zip(asked.samples, found, strict=True)}
    if len(message.prompt_logprobs) != len(asked.prompts):
        return None
    prompts = []
    for part, span in zip(message.prompt_logprobs, asked.prompts, strict=True):
        found = _positions(part.logprobs)
        if (part.row, part.first_position) != (span.row, span.first) or found is None:
            return None
        if len(found) != span.count:
            return None
        prompts.append(PromptPart(span.seq_id, span.first, found))
    return StepLogprobs(samples, tuple(prompts))


def _positions(message: worker_pb2.Logprobs) -> list[TokenValues] | None:
    width, size = message.width, len(message.token_ids)
    if not width or size != len(message.values) or size % (4 * width):
        return None
    ids: Int32Array = np.frombuffer(message.token_ids, _INT32).reshape(-1, width)
    values: npt.NDArray[np.float32] = np.frombuffer(message.values, _FLOAT32).reshape(-1, width)
    return [TokenValues(*pair) for pair in zip(ids.tolist(), values.tolist(), strict=True)]

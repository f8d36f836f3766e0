"""What single rows ask beyond a draw from their own logits: changed logits, grammars, log-probabilities.

Owns the host's flags of each row and the checks of what a set-up asks for; knows no device. Invariant: a step
in which no row asks for anything costs one look at a flag array for each question.
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np
import numpy.typing as npt

from gpu_worker.errors import PlanError
from gpu_worker.wire import Int32Array, Plan, RowSetup, Sampling

MAX_LOGPROBS = 20
_NONE: npt.NDArray[np.int64] = np.empty(0, np.int64)
_FOR_EVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Prompt tokens [first, first + len(targets)) of a row whose log-probabilities a step computes.

    at: index into the step's flat tokens of the token before the first. targets: their ids.
    """

    row: int
    first: int
    at: int
    targets: Int32Array


class RowAsks:
    """Rows 0..max_rows-1 of one session. logprobs: alternatives to report, -1 where none were asked for.
    anybody: whether any row asks for anything about its samples.
    """

    def __init__(self, max_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.logprobs = np.full(max_rows, -1, np.int32)
        self.anybody = False
        self._adjusted = np.zeros(max_rows, np.bool_)
        self._adjusted_until = np.zeros(max_rows, np.int64)  # output position; meaningful while _adjusted
        self._constrained = np.zeros(max_rows, np.bool_)
        self._prompts: dict[int, tuple[int, Int32Array]] = {}

    def set_up(self, setup: RowSetup) -> None:
        """Takes over what a row asks for. Raises PlanError naming the field that is out of bounds."""
        given, row = setup.sampling, setup.row
        _check_numbers(given)
        self._check_ids(setup)
        self._adjusted[row] = given.adjusts
        lasts = given.penalises or given.bias_ids
        self._adjusted_until[row] = _FOR_EVER if lasts else given.min_tokens
        self.logprobs[row] = given.logprobs
        self._constrained[row] = bool(given.grammar)
        self.anybody = self.anybody or given.adjusts or bool(given.grammar) or given.logprobs >= 0
        if given.prompt_logprobs >= 0:
            self._prompts[row] = (given.prompt_logprobs, setup.prompt_ids)

    def release(self, rows: Int32Array) -> None:
        at = rows if len(rows) > 1 else int(rows[0])
        self._adjusted[at] = self._constrained[at] = False
        self.logprobs[at] = -1
        self.anybody = self.anybody and self._anybody()
        if self._prompts:
            for row in rows.tolist():
                self._prompts.pop(row, None)

    def clear(self) -> None:
        self._adjusted[:] = self._constrained[:] = False
        self.logprobs[:] = -1
        self.anybody = False
        self._prompts.clear()

    def _anybody(self) -> bool:
        flags = self._adjusted | self._constrained | (self.logprobs >= 0)
        return bool(flags.any())

    @property
    def nobody(self) -> bool:
        """Whether no row asks for anything, of its prompt neither."""
        return not self.anybody and not self._prompts

    def constrained(self, rows: Int32Array) -> npt.NDArray[np.int64]:
        """Places among the samples that follow a grammar."""
        return np.flatnonzero(self._constrained[rows])

    def changed(self, rows: Int32Array, output_positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Places among the samples whose logits are changed or masked before they are drawn from."""
        adjusted, constrained = self.adjusted(rows, output_positions), self.constrained(rows)
        return np.union1d(adjusted, constrained) if len(constrained) else adjusted

    def adjusted(self, rows: Int32Array, output_positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Places among the samples whose logits bias, suppressed ids or penalties change."""
        flags = self._adjusted[rows]
        if not flags.any():
            return _NONE
        return np.flatnonzero(flags & (output_positions < self._adjusted_until[rows]))

    def with_logprobs(self, rows: Int32Array) -> npt.NDArray[np.int64]:
        """Places among the samples whose log-probabilities are asked for."""
        return np.flatnonzero(self.logprobs[rows] >= 0)

    def prompt_spans(self, plan: Plan) -> tuple[PromptSpan, ...]:
        """The prompt tokens whose log-probabilities this step has to report."""
        if not self._prompts:
            return ()
        spans, at = [], 0
        for row, new, context in zip(
            plan.rows.tolist(), plan.query_lens.tolist(), plan.context_lens.tolist(), strict=True
        ):
            if row in self._prompts:
                first = context - new + 1
                targets = self._prompts[row][1][first : context + 1]
                if len(targets):
                    spans.append(PromptSpan(row, first, at, targets))
            at += new
        return tuple(spans)

    def prompt_logprobs(self, row: int) -> int:
        """Alternatives to report of the row's prompt tokens."""
        return self._prompts[row][0]

    def _check_ids(self, setup: RowSetup) -> None:
        given = setup.sampling
        if len(given.bias_ids) != len(given.bias_values):
            counts = f"{len(given.bias_ids)} ids, {len(given.bias_values)} values"
            raise PlanError("row_setups.sampling.logit_bias_values", counts)
        for name, ids in (
            ("sampling.logit_bias_ids", given.bias_ids),
            ("sampling.suppressed_ids", given.suppressed_ids),
            ("prompt_ids", setup.prompt_ids),
            ("output_ids", setup.output_ids),
        ):
            if not len(ids):
                continue
            array = np.asarray(ids, np.int64)
            if array.min() < 0 or array.max() >= self._vocab_size:
                raise PlanError(f"row_setups.{name}", f"an id is not in 0..{self._vocab_size - 1}")
        needed = given.penalises or given.prompt_logprobs >= 0
        if needed and len(setup.prompt_ids) != setup.prompt_len:
            counts = f"{len(setup.prompt_ids)} ids, prompt_len is {setup.prompt_len}"
            raise PlanError("row_setups.prompt_ids", counts)


def _check_numbers(given: Sampling) -> None:
    field = "row_setups.sampling."
    if not (isfinite(given.temperature) and given.temperature >= 0):
        raise PlanError(f"{field}temperature", f"{given.temperature} is not a finite number >= 0")
    if not 0 < given.top_p <= 1:
        raise PlanError(f"{field}top_p", f"{given.top_p}, expected above 0 and at most 1")
    if not 0 <= given.min_p <= 1:
        raise PlanError(f"{field}min_p", f"{given.min_p}, expected 0..1")
    for name in ("presence_penalty", "frequency_penalty"):
        if not isfinite(getattr(given, name)):
            raise PlanError(f"{field}{name}", f"{getattr(given, name)} is not finite")
    if not (isfinite(given.repetition_penalty) and given.repetition_penalty > 0):
        raise PlanError(f"{field}repetition_penalty", f"{given.repetition_penalty} is not finite and above 0")
    if not all(map(isfinite, given.bias_values)):
        raise PlanError(f"{field}logit_bias_values", "a value is not finite")
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(given, name) > MAX_LOGPROBS:
            raise PlanError(f"{field}{name}", f"{getattr(given, name)} is above {MAX_LOGPROBS}")

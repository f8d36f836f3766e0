"""Log-probabilities that a fake worker reports: made up, but each from the token it belongs to.

Owns which rows ask; knows no pool. Invariant: the value of a token follows from its id alone, so that a value
which reached another token shows.
"""

from collections.abc import Sequence

import numpy as np

from octavo.worker.v1 import worker_pb2
from tests.fakes.plan_decoder import DecodedPlan
from tests.fakes.plan_like import Int32Array


def value_of(token_id: int) -> float:
    """What the fakes say of a token: a float32 that is exact."""
    return -0.25 * (1 + token_id % 64)


class FakeLogprobs:
    """The asking rows of one session."""

    def __init__(self) -> None:
        self._top: dict[int, int] = {}
        self._prompts: dict[int, tuple[int, Int32Array]] = {}

    def answer(
        self,
        message: worker_pb2.StepPlan,
        plan: DecodedPlan,
        tokens: Int32Array,
        result: worker_pb2.StepResult,
    ) -> None:
        """Takes in the rows of a plan, and writes what they ask for; tokens [S]: what it sampled."""
        self._obey(message)
        asking = [place for place, row in enumerate(plan.sample_rows.tolist()) if row in self._top]
        if asking:
            width = 1 + max(self._top[int(plan.sample_rows[place])] for place in asking)
            _fill(result.logprobs, tokens[asking].tolist(), width)
        batch = (plan.rows, plan.query_lens, plan.context_lens)
        for row, new, context in zip(*(part.tolist() for part in batch), strict=True):
            if row in self._prompts:
                top, prompt = self._prompts[row]
                first = context - new + 1
                if len(targets := prompt[first : context + 1]):
                    part = result.prompt_logprobs.add(row=row, first_position=first)
                    _fill(part.logprobs, targets.tolist(), 1 + top)

    def _obey(self, message: worker_pb2.StepPlan) -> None:
        for row in np.frombuffer(message.released_rows, "<i4").tolist():
            self._top.pop(row, None)
            self._prompts.pop(row, None)
        for setup in message.row_setups:
            sampling = setup.sampling
            if sampling.HasField("logprobs"):
                self._top[setup.row] = sampling.logprobs
            if sampling.HasField("prompt_logprobs"):
                prompt = np.frombuffer(setup.prompt_ids, "<i4").astype(np.int32)
                assert len(prompt) == setup.prompt_len, "prompt_logprobs without the prompt"
                self._prompts[setup.row] = (sampling.prompt_logprobs, prompt)


def _fill(message: worker_pb2.Logprobs, tokens: Sequence[int], width: int) -> None:
    ids = np.array([[token, *range(width - 1)] for token in tokens], "<i4")
    message.width = width
    message.token_ids = ids.tobytes()
    message.values = np.vectorize(value_of, otypes=[np.float32])(ids).astype("<f4").tobytes()

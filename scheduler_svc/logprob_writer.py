"""Log-probabilities as clients are told them.

Owns their messages and the collection of a prompt's parts; knows neither worker nor stream. Invariant: a
position has the sampled token and as many others as were asked for, and a prompt is told whole.
"""

import math
from collections.abc import Callable
from functools import lru_cache

from octavo.v1 import inference_pb2
from scheduler_svc.logprobs import PromptPart, TokenValues

LOWEST = -9999.0
"""Stands for minus infinity, which JSON has no number for."""


class LogprobWriter:
    """top, prompt_top: alternatives to tell of output and prompt, None for none of it. spell: the bytes of a
    token. tells_output: whether sampled tokens are told of.
    """

    def __init__(
        self, top: int | None, prompt_top: int | None, prompt_len: int, spell: Callable[[int], bytes]
    ) -> None:
        self.tells_output = top is not None
        self._top = top or 0
        self._prompt_top = prompt_top or 0
        self._spell = lru_cache(maxsize=64)(spell)
        self._prompt: list[inference_pb2.PositionLogprobs | None] = []
        if prompt_top is not None:
            self._prompt = [inference_pb2.PositionLogprobs(), *[None] * (prompt_len - 1)]
        self._missing = max(0, len(self._prompt) - 1)

    @property
    def prompt_is_whole(self) -> bool:
        """Whether every position of the prompt is known; True too when none was asked for."""
        return not self._missing

    def position(self, values: TokenValues) -> inference_pb2.PositionLogprobs:
        """The message of one sampled token."""
        return self._message(values, self._top)

    def add_prompt(self, part: PromptPart) -> None:
        """Takes a part in; what is known already, after a preemption, or stands outside is left out."""
        for at, values in enumerate(part.positions, part.first):
            if 0 < at < len(self._prompt) and self._prompt[at] is None:
                self._prompt[at] = self._message(values, self._prompt_top)
                self._missing -= 1

    def take_prompt(self) -> list[inference_pb2.PositionLogprobs]:
        """All positions of a whole prompt, given away; none of one that is not whole."""
        taken = [position for position in self._prompt if position is not None]
        self._prompt = []
        return [] if self._missing else taken

    def _message(self, values: TokenValues, top: int) -> inference_pb2.PositionLogprobs:
        tokens = [self._token(*pair) for pair in zip(values.ids[: top + 1], values.values, strict=False)]
        return inference_pb2.PositionLogprobs(sampled=tokens[0], top=tokens[1:])

    def _token(self, token_id: int, value: float) -> inference_pb2.TokenLogprob:
        finite = value if math.isfinite(value) else LOWEST
        return inference_pb2.TokenLogprob(token_id=token_id, logprob=finite, token=self._spell(token_id))

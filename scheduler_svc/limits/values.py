"""The bounds on input, and requests that are within them.

Owns the numbers and the typed requests; does not know how a field is checked. Invariant: every value of a
checked request is resolved (no default is left to be filled in) and within `Limits`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Limits:
    """Inclusive upper bounds. Lengths are in characters unless the name says bytes."""

    prompt_bytes: int = 4 << 20
    prompt_tokens: int = 1 << 20
    chat_messages: int = 1024
    chat_role: int = 64
    chat_tools: int = 128
    n: int = 128
    temperature: float = 100.0
    top_k: int = 1 << 20
    penalty: float = 2.0
    repetition_penalty: float = 10.0
    logit_bias_entries: int = 1024
    logit_bias: float = 100.0
    max_tokens: int = 1 << 20
    stop_strings: int = 16
    stop_string: int = 256
    stop_token_ids: int = 64
    top_logprobs: int = 20
    prompt_logprob_entries: int = 1 << 17
    response_format_bytes: int = 1 << 16
    request_id: int = 128
    cache_salt: int = 256
    queue_timeout_seconds: int = 86_400
    abort_ids: int = 4096
    detokenize_ids: int = 1 << 20
    kv_readers: int = 16


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Of the model. vocab_size: rows of its embedding. max_model_len: prompt and output tokens together."""

    max_model_len: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class TextPrompt:
    text: str
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """ids: [T] int32, within the vocabulary."""

    ids: Int32Array


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """messages: role and whatever else a turn has, as a template reads them. variables: the template's."""

    messages: tuple[Mapping[str, Any], ...]
    add_generation_prompt: bool = True
    tools: list[Any] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A GenerateRequest within all limits that can be seen before tokenisation.

    request_id: empty when the server draws it. seed None: the server draws it. top_k 0: all tokens (a top_k
    that covers the vocabulary too). response_format: its kind and text. max_tokens None: to the context
    limit. queue_timeout: seconds, None for no bound.
    """

    request_id: str
    prompt: Prompt
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    include_stop: bool
    skip_special_tokens: bool
    token_ids_only: bool
    priority: int
    cache_salt: str
    use_prefix_cache: bool
    queue_timeout: float | None
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    response_format: tuple[str, str] | None = None

    def ending_ids(self, eos_token_ids: frozenset[int]) -> frozenset[int]:
        """The ids that end a sequence: ignore_eos silences the model's own, never those of the request."""
        return self.stop_token_ids if self.ignore_eos else self.stop_token_ids | eos_token_ids

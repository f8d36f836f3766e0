"""The client's values of generation: requests, events, completions, as frozen dataclasses.

Owns their names and defaults; knows no transport and no protobuf. Invariant: a value never changes after it
is made.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from octavo_client.errors import InvalidArgument, OctavoError


class FinishReason(enum.Enum):
    """Why a sequence ended."""

    UNSPECIFIED = "unspecified"
    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    KV_POOL = "kv_pool"
    ERROR = "error"


@dataclass(frozen=True)
class ChatMessage:
    """One turn of a chat, in OpenAI's terms. content: a text, its parts, or None beside tool_calls.

    tool_calls: {"id", "type", "function": {"name", "arguments"}} objects of an assistant's turn.
    tool_call_id: the call that a turn of role "tool" answers.
    """

    role: str
    content: str | Sequence[str] | None = None
    tool_calls: Sequence[Mapping[str, Any]] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning_content: str = ""


@dataclass(frozen=True)
class GenerateOptions:
    """How to sample and when to stop. None leaves it to the server's default (octavo/v1/inference.proto).

    tools, chat_template_kwargs and add_generation_prompt are for requests of messages: functions that the
    model may call, further variables of its chat template, and whether the prompt ends with the header of an
    answer.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    token_ids_only: bool = False
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    n: int | None = None
    priority: int = 0
    cache_salt: str = ""
    use_prefix_cache: bool | None = None
    queue_timeout: float | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    add_generation_prompt: bool | None = None


class OptionFields(TypedDict, total=False):
    """The fields of GenerateOptions as keyword arguments."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    seed: int | None
    logit_bias: Mapping[int, float]
    max_tokens: int | None
    min_tokens: int | None
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    logprobs: int | None
    prompt_logprobs: int | None
    skip_special_tokens: bool | None
    token_ids_only: bool
    json_schema: str | None
    regex: str | None
    ebnf: str | None
    n: int | None
    priority: int
    cache_salt: str
    use_prefix_cache: bool | None
    queue_timeout: float | None
    tools: Sequence[Mapping[str, Any]] | None
    chat_template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool | None


Message = ChatMessage | Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """One thing to generate from: exactly one of prompt, messages and token_ids is given.

    Raises InvalidArgument when none or several are. An empty request_id is drawn by the server or by batch().
    """

    prompt: str | None = None
    messages: Sequence[Message] | None = None
    token_ids: Sequence[int] | None = None
    options: GenerateOptions = field(default_factory=GenerateOptions)
    request_id: str = ""

    def __post_init__(self) -> None:
        given = [name for name in ("prompt", "messages", "token_ids") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidArgument(
                f"give exactly one of prompt, messages and token_ids; got {', '.join(given) or 'none'}",
                field="prompt",
            )


@dataclass(frozen=True)
class Usage:
    """Token counts of one sequence, or in a Completion of all: there the prompt counts once.

    shared_blocks_saved: KV blocks that a sequence shared with another of its request.
    """

    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    preemptions: int
    shared_blocks_saved: int = 0


@dataclass(frozen=True)
class TokenLogprob:
    """A natural logarithm, -9999.0 for minus infinity. token: the bytes that the id stands for."""

    token_id: int
    logprob: float
    token: bytes = b""


@dataclass(frozen=True)
class PositionLogprobs:
    """Of one position: the token that was sampled, or stands in the prompt, and the likeliest ones.

    sampled is None for the first token of a prompt.
    """

    sampled: TokenLogprob | None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Accepted:
    """The server took the request; cached_prompt_tokens were found in the prefix cache."""

    request_id: str
    prompt_tokens: int
    cached_prompt_tokens: int
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()


@dataclass(frozen=True)
class Delta:
    """New output of sequence `index`. logprobs, where asked for: one a token id."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()


@dataclass(frozen=True)
class Finished:
    """Sequence `index` ended. `stop` or `stop_token_id` says what matched when reason is STOP."""

    index: int
    reason: FinishReason
    usage: Usage
    stop: str | None = None
    stop_token_id: int | None = None
    error_reason: str = ""


@dataclass(frozen=True)
class RequestFailed:
    """A request of a batch was refused or failed; the others go on."""

    error: OctavoError


Event = Accepted | Delta | Finished
BatchEvent = Accepted | Delta | Finished | RequestFailed


@dataclass(frozen=True)
class Choice:
    """The whole output of one sequence."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finished: Finished
    logprobs: tuple[PositionLogprobs, ...] = ()


@dataclass(frozen=True)
class Completion:
    """A request answered once: one choice a sequence. The shortcuts read the first."""

    request_id: str
    choices: tuple[Choice, ...]
    usage: Usage
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finished.reason


@dataclass(frozen=True)
class ModelInfo:
    """What is served."""

    model_id: str
    model_fingerprint: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    kv_dtype: str
    block_size: int

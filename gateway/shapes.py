"""The shapes of answers, for the code that builds them and for the OpenAPI document.

Owns names and types; builds nothing. Invariant: a key that may be missing is NotRequired here.
"""

from typing import (
    Literal,
    NotRequired,  # pydantic reads no other before Python 3.12
)

from typing_extensions import TypedDict


class PromptTokensDetails(TypedDict):
    """cached_tokens: prompt tokens that the prefix cache had."""

    cached_tokens: int


class Usage(TypedDict):
    """Tokens of a whole request: each prompt once, the tokens of all its answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


FinishReason = Literal["stop", "length", "abort"]


class CompletionLogprobs(TypedDict):
    """One entry a token. A null log-probability stands for minus infinity."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """stop_reason: the stop string or stop token id that matched."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


class Completion(TypedDict):
    """The answer of /v1/completions, and each chunk of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class TopLogprob(TypedDict):
    """A token that was likely at a position. bytes: its own, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TypedDict):
    """The token that was sampled at a position, and the likeliest ones."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """One entry a token."""

    content: list[TokenLogprob]


class ChatMessage(TypedDict):
    """The answer. A tool call that the model makes is part of its content."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """stop_reason: the stop string or stop token id that matched."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


class ChatCompletion(TypedDict):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(TypedDict):
    """What a chunk adds to a message."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatChunkChoice(TypedDict):
    """stop_reason: the stop string or stop token id that matched."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


class ChatChunk(TypedDict):
    """A chunk of the stream of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]


class Model(TypedDict):
    """The served model. max_model_len: prompt and output tokens together."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelList(TypedDict):
    """The answer of /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Tokens(TypedDict):
    """The answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]


class Text(TypedDict):
    """The answer of /detokenize."""

    prompt: str


class Health(TypedDict):
    """The answer of /health."""

    status: Literal["ok"]

"""Checks on prompts, before and after tokenisation.

Owns the bounds on text, ids and chats; does not know sampling or stopping. Invariant: a prompt that passes
`check_prompt` fits the model with room for at least one output token.
"""

from collections.abc import Sequence

import numpy as np

from octavo.v1 import inference_pb2 as pb
from scheduler_svc.limits.chat import chat_prompt, utf8_len
from scheduler_svc.limits.fields import at_most, refuse, token_id
from scheduler_svc.limits.values import (
    CheckedRequest,
    Int32Array,
    Limits,
    ModelFacts,
    Prompt,
    TextPrompt,
    TokenPrompt,
)


def prompt_of(request: pb.GenerateRequest, limits: Limits, model: ModelFacts) -> Prompt:
    """The prompt of a request, whichever kind it is."""
    kind = request.WhichOneof("prompt")
    if kind == "text":
        return text_prompt(request.text, limits)
    if kind == "token_ids":
        return TokenPrompt(id_array("token_ids", request.token_ids.ids, limits.prompt_tokens, model))
    if kind == "chat":
        return chat_prompt(request.chat, limits)
    raise refuse("prompt", "none of text, token_ids, chat is set", "EMPTY_PROMPT")


def text_prompt(text: str, limits: Limits, add_special_tokens: bool = True) -> TextPrompt:
    if not text:
        raise refuse("text", "is empty", "EMPTY_PROMPT")
    at_most("text", utf8_len(text), limits.prompt_bytes, "bytes")
    return TextPrompt(text, add_special_tokens)


def id_array(field: str, ids: Sequence[int], limit: int, model: ModelFacts) -> Int32Array:
    """[T] int32 of at least one and at most `limit` ids of the vocabulary."""
    if not ids:
        raise refuse(field, "is empty", "EMPTY_PROMPT")
    at_most(field, len(ids), limit, "token ids")
    array = np.array(ids, np.uint32)
    place = int(array.argmax())
    token_id(f"{field}[{place}]", int(array[place]), model.vocab_size)
    return array.view(np.int32)


def check_prompt(ids: Int32Array, checked: CheckedRequest, limits: Limits, model: ModelFacts) -> None:
    """Checks a request once its prompt is token ids.

    The prompt and at least one output token must fit max_model_len; max_tokens, when given, must fit what is
    left (it is refused, not clamped). Raises InvalidArgument (EMPTY_PROMPT, EXCEEDS_MODEL_LEN,
    TOKEN_OUT_OF_VOCABULARY).
    """
    field = prompt_field(checked.prompt)
    if not len(ids):
        raise refuse(field, "gives no token", "EMPTY_PROMPT")
    at_most(field, len(ids), limits.prompt_tokens, "tokens")
    if not isinstance(checked.prompt, TokenPrompt):  # `id_array` has looked at those
        token_id(field, int(ids.max()), model.vocab_size)
        token_id(field, int(ids.min()) % 2**32, model.vocab_size)
    if len(ids) >= model.max_model_len:
        room = f"the model takes {model.max_model_len} with at least one output token"
        raise refuse(field, f"{len(ids)} tokens, {room}", "EXCEEDS_MODEL_LEN")
    if checked.prompt_logprobs is not None:
        entries, what = len(ids) * (1 + checked.prompt_logprobs), f"{len(ids)} prompt tokens"
        what = f"values ({1 + checked.prompt_logprobs} for each of {what})"
        at_most("output.prompt_logprobs", entries, limits.prompt_logprob_entries, what)
    for name, wanted in (("max_tokens", checked.max_tokens or 0), ("min_tokens", checked.min_tokens)):
        if len(ids) + wanted > model.max_model_len:
            total = f"{len(ids)} prompt tokens + {wanted} is {len(ids) + wanted}"
            message = f"{total}, the model takes {model.max_model_len}"
            raise refuse(f"stopping.{name}", message, "EXCEEDS_MODEL_LEN")


def prompt_field(prompt: Prompt) -> str:
    """The field of GenerateRequest that a prompt came in."""
    if isinstance(prompt, TextPrompt):
        return "text"
    return "token_ids" if isinstance(prompt, TokenPrompt) else "chat"

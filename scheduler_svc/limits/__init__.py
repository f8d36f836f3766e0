"""Every bound on input, checked before any work.

Owns the limits and the resolution of defaults; does not know the tokenizer, the queue or the core. Invariant:
a refusal names field, value and limit, and a checked request needs no further check but `check_prompt` after
tokenisation.
"""

from scheduler_svc.limits.defaults import fill_in, sampling_defaults
from scheduler_svc.limits.generate import check_generate
from scheduler_svc.limits.others import (
    check_abort,
    check_detokenize,
    check_explain_request,
    check_flush,
    check_request_id,
    check_sequence_blocks,
    check_tokenize,
)
from scheduler_svc.limits.prompt import check_prompt
from scheduler_svc.limits.values import (
    ChatPrompt,
    CheckedRequest,
    Limits,
    ModelFacts,
    Prompt,
    TextPrompt,
    TokenPrompt,
)

__all__ = [
    "ChatPrompt",
    "CheckedRequest",
    "Limits",
    "ModelFacts",
    "Prompt",
    "TextPrompt",
    "TokenPrompt",
    "check_abort",
    "check_detokenize",
    "check_explain_request",
    "check_flush",
    "check_generate",
    "check_prompt",
    "check_request_id",
    "check_sequence_blocks",
    "check_tokenize",
    "fill_in",
    "sampling_defaults",
]

"""Checks on the other methods' requests.

Owns the bounds of Abort, Tokenize, Detokenize and the operators' lookups; does not know who is live.
Invariant: as in `generate`, a refusal names field, value and limit.
"""

import numpy as np

from octavo.v1 import inference_pb2 as pb
from octavo.v1 import kv_cache_pb2 as kv_pb
from scheduler_svc.limits.chat import chat_prompt
from scheduler_svc.limits.fields import at_most, flag, name, refuse
from scheduler_svc.limits.prompt import id_array, text_prompt
from scheduler_svc.limits.values import ChatPrompt, Int32Array, Limits, ModelFacts, TextPrompt


def check_request_id(field: str, request_id: str, limits: Limits) -> str:
    """An id that names a live request: not empty, printable, bounded."""
    if not request_id:
        raise refuse(field, "is empty")
    return name(field, request_id, limits.request_id)


def check_abort(request: pb.AbortRequest, limits: Limits) -> tuple[str, ...]:
    """The ids to abort; none is fine, and an unknown id is no error."""
    at_most("request_ids", len(request.request_ids), limits.abort_ids, "request ids")
    return tuple(
        check_request_id(f"request_ids[{place}]", request_id, limits)
        for place, request_id in enumerate(request.request_ids)
    )


def check_tokenize(request: pb.TokenizeRequest, limits: Limits) -> TextPrompt | ChatPrompt:
    """What to tokenise. An empty text is fine here: it has an answer."""
    kind = request.WhichOneof("input")
    special = flag(request, "add_special_tokens", default=True)
    if kind == "text":
        return text_prompt(request.text, limits, special) if request.text else TextPrompt("", special)
    if kind == "chat":
        return chat_prompt(request.chat, limits)
    raise refuse("input", "none of text, chat is set", "EMPTY_PROMPT")


def check_detokenize(
    request: pb.DetokenizeRequest, limits: Limits, model: ModelFacts
) -> tuple[Int32Array, bool]:
    """The ids ([T] int32, perhaps none) and skip_special_tokens."""
    skip = flag(request, "skip_special_tokens", default=True)
    if not request.token_ids:
        return np.empty(0, np.int32), skip
    return id_array("token_ids", request.token_ids, limits.detokenize_ids, model), skip


def check_sequence_blocks(request: kv_pb.GetSequenceBlocksRequest, limits: Limits) -> str:
    """The id of the request to look up."""
    return check_request_id("request_id", request.request_id, limits)


def check_explain_request(request: kv_pb.ExplainRequestRequest, limits: Limits) -> str:
    """The id of the request to explain."""
    return check_request_id("request_id", request.request_id, limits)


def check_flush(request: kv_pb.FlushPrefixCacheRequest, limits: Limits) -> str | None:
    """The namespace to flush; None for all. An empty salt is the shared namespace."""
    if not request.HasField("cache_salt"):
        return None
    at_most("cache_salt", len(request.cache_salt), limits.cache_salt, "characters")
    return request.cache_salt

"""Between the client's values and the protobuf messages of octavo.v1.

Owns the translation, both ways; knows no channel. Invariant: a value that does not fit its field is refused
by name before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import duration_pb2

from octavo import bounds
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import kv_cache_pb2 as kv
from octavo_client import types, views
from octavo_client.convert_chat import to_chat
from octavo_client.errors import Internal, InvalidArgument, from_code
from octavo_client.message_fields import extend, held, set_field

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
_STOPPING = ("max_tokens", "min_tokens", "ignore_eos", "include_stop_str_in_output")
_OUTPUT = ("logprobs", "prompt_logprobs", "skip_special_tokens", "token_ids_only")
_FORMATS = ("json_schema", "regex", "ebnf")
_TOP = ("n", "priority", "cache_salt", "use_prefix_cache")
_REASONS = {
    pb.FINISH_REASON_STOP: types.FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: types.FinishReason.LENGTH,
    pb.FINISH_REASON_ABORTED: types.FinishReason.ABORTED,
    pb.FINISH_REASON_KV_POOL: types.FinishReason.KV_POOL,
    pb.FINISH_REASON_ERROR: types.FinishReason.ERROR,
}
_STATES = {
    kv.REQUEST_STATE_WAITING: "waiting",
    kv.REQUEST_STATE_RUNNING: "running",
    kv.REQUEST_STATE_PREEMPTED: "preempted",
}


def to_request(request: types.Request) -> pb.GenerateRequest:
    """The message of a request. Raises InvalidArgument, naming a field whose value its type cannot hold."""
    options = request.options
    for name in ("tools", "chat_template_kwargs", "add_generation_prompt"):
        if request.messages is None and getattr(options, name) is not None:
            raise InvalidArgument(f"{name}: only for a request of messages", field=name)
    message = pb.GenerateRequest(request_id=request.request_id)
    if request.messages is not None:
        message.chat.CopyFrom(to_chat(request.messages, options.tools, options.chat_template_kwargs))
        set_field(message.chat, "add_generation_prompt", options.add_generation_prompt)
    elif request.token_ids is not None:
        message.token_ids.SetInParent()
        extend(message.token_ids.ids, request.token_ids, "token_ids")
    else:
        set_field(message, "text", request.prompt)
    _copy(options, message.sampling, _SAMPLING)
    _set_bias(message.sampling, options)
    _copy(options, message.stopping, _STOPPING)
    if isinstance(options.stop, str):
        raise InvalidArgument("stop: give a list of strings, not one string", field="stop")
    extend(message.stopping.stop, options.stop, "stop")
    extend(message.stopping.stop_token_ids, options.stop_token_ids, "stop_token_ids")
    _copy(options, message.output, _OUTPUT)
    formats = [name for name in _FORMATS if getattr(options, name) is not None]
    if len(formats) > 1:
        raise InvalidArgument(
            f"give at most one of {', '.join(_FORMATS)}; got {', '.join(formats)}", field=formats[1]
        )
    _copy(options, message.response_format, _FORMATS)
    _copy(options, message, _TOP)
    if options.queue_timeout is not None:
        message.queue_timeout.CopyFrom(_to_duration(options.queue_timeout, "queue_timeout"))
    return message


def from_event(message: pb.GenerateResponse | pb.BatchEvent) -> types.Event:
    """The typed event of one response. Raises Internal when the server sent none."""
    match message.WhichOneof("event"):
        case "accepted":
            accepted = message.accepted
            return types.Accepted(
                accepted.request_id,
                accepted.prompt_tokens,
                accepted.cached_prompt_tokens,
                _from_logprobs(accepted.prompt_logprobs),
            )
        case "delta":
            delta = message.delta
            logprobs = _from_logprobs(delta.logprobs)
            return types.Delta(delta.index, delta.text, tuple(delta.token_ids), logprobs)
        case "finished":
            return from_finished(message.finished)
        case other:
            raise Internal(f"the server sent an event that this client does not know: {other}")


def from_batch_event(message: pb.BatchEvent) -> types.BatchEvent:
    if message.WhichOneof("event") == "error":
        error = message.error
        return types.RequestFailed(from_code(error.code, error.message, error.reason, error.field))
    return from_event(message)


def from_finished(message: pb.Finished) -> types.Finished:
    matched = message.WhichOneof("matched")
    return types.Finished(
        index=message.index,
        reason=_REASONS.get(message.reason, types.FinishReason.UNSPECIFIED),
        usage=_from_usage(message.usage),
        stop=message.stop if matched == "stop" else None,
        stop_token_id=message.stop_token_id if matched == "stop_token_id" else None,
        error_reason=message.error_reason,
    )


def from_completion(message: pb.GenerateOnceResponse) -> types.Completion:
    choices = tuple(
        types.Choice(
            c.index, c.text, tuple(c.token_ids), from_finished(c.finished), _from_logprobs(c.logprobs)
        )
        for c in message.completions
    )
    if not choices:
        raise Internal("the server answered with no completion")
    prompt_logprobs = _from_logprobs(message.prompt_logprobs)
    return types.Completion(message.request_id, choices, _from_usage(message.usage), prompt_logprobs)


def from_model_info(message: pb.GetModelInfoResponse) -> types.ModelInfo:
    return types.ModelInfo(
        message.model_id,
        message.model_fingerprint,
        message.max_model_len,
        message.vocab_size,
        tuple(message.eos_token_ids),
        message.has_chat_template,
        message.kv_dtype,
        message.block_size,
    )


def from_stats(message: kv.GetKvCacheStatsResponse) -> views.PoolStats:
    names = [name for name in views.PoolStats.__dataclass_fields__ if name != "requests"]
    plain = {name: getattr(message, name) for name in names}
    return views.PoolStats(**plain, requests=tuple(_from_summary(r) for r in message.requests))


def from_pool_map(message: kv.GetPoolMapResponse) -> views.PoolMap:
    """Arrays over all blocks. Raises Internal when their lengths disagree with num_blocks."""
    blocks = message.num_blocks
    return views.PoolMap(
        block_size=message.block_size,
        state=_array(message.state, np.dtype(np.uint8), blocks, "state"),
        ref_count=_array(message.ref_count, np.dtype("<i4"), blocks, "ref_count"),
        fill=_array(message.fill, np.dtype("<i4"), blocks, "fill"),
        cached=_array(message.cached, np.dtype(np.uint8), blocks, "cached"),
    )


def from_sequence_blocks(message: kv.GetSequenceBlocksResponse) -> views.SequenceBlocks:
    blocks = tuple(
        views.SequenceBlock(b.block_id, b.ref_count, b.fill, b.hash_prefix, b.tier) for b in message.blocks
    )
    return views.SequenceBlocks(message.request_id, message.index, message.num_tokens, blocks)


def from_explanation(message: kv.ExplainRequestResponse) -> views.Explanation:
    need = message.need
    spare = message.free_blocks + message.evictable_blocks - message.promised_blocks
    needed = need.context - need.hits + need.idle_hits + need.reserve if message.HasField("need") else 0
    return views.Explanation(
        request=_from_summary(message.request),
        text=message.text,
        wait_reasons=tuple(
            kv.WaitReason.Name(reason).removeprefix("WAIT_REASON_").lower() for reason in message.wait_reasons
        ),
        ahead=message.ahead,
        missing_blocks=max(0, needed - spare) if needed else 0,
        next_evicted=tuple(message.next_evicted_blocks),
        next_victim=message.next_victim_request_id,
    )


def to_tokenize(
    prompt: str | None,
    messages: Sequence[types.Message] | None,
    add_special_tokens: bool | None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> pb.TokenizeRequest:
    """The message of tokenize(); exactly one of prompt and messages."""
    if (prompt is None) == (messages is None):
        raise InvalidArgument("give exactly one of prompt and messages", field="prompt")
    message = pb.TokenizeRequest()
    set_field(message, "add_special_tokens", add_special_tokens)
    if messages is not None:
        message.chat.CopyFrom(to_chat(messages, tools, chat_template_kwargs))
    else:
        set_field(message, "text", prompt, "prompt")
    return message


def to_detokenize(token_ids: Sequence[int], skip_special_tokens: bool | None) -> pb.DetokenizeRequest:
    message = pb.DetokenizeRequest()
    set_field(message, "skip_special_tokens", skip_special_tokens)
    extend(message.token_ids, token_ids, "token_ids")
    return message


def _from_usage(usage: pb.Usage) -> types.Usage:
    return types.Usage(
        usage.prompt_tokens,
        usage.cached_prompt_tokens,
        usage.completion_tokens,
        usage.preemptions,
        usage.shared_blocks_saved,
    )


def _from_logprobs(positions: Iterable[pb.PositionLogprobs]) -> tuple[types.PositionLogprobs, ...]:
    return tuple(
        types.PositionLogprobs(
            _from_logprob(position.sampled) if position.HasField("sampled") else None,
            tuple(_from_logprob(token) for token in position.top),
        )
        for position in positions
    )


def _from_logprob(token: pb.TokenLogprob) -> types.TokenLogprob:
    return types.TokenLogprob(token.token_id, token.logprob, token.token)


def _from_summary(r: kv.RequestSummary) -> views.RequestView:
    names = [name for name in views.RequestView.__dataclass_fields__ if name != "state"]
    return views.RequestView(
        state=_STATES.get(r.state, "unknown"), **{name: getattr(r, name) for name in names}
    )


def _array(data: bytes, dtype: np.dtype[Any], length: int, name: str) -> npt.NDArray[Any]:
    if len(data) != length * dtype.itemsize:
        raise Internal(f"pool map: {name} has {len(data)} bytes for {length} blocks")
    return np.frombuffer(data, dtype)


def _to_duration(seconds: float, name: str) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    try:
        duration.FromNanoseconds(round(seconds * 1e9))
    except (ValueError, TypeError, OverflowError):
        raise InvalidArgument(bounds.refusal(name, seconds), field=name) from None
    return duration


def _copy(options: types.GenerateOptions, message: Any, names: Sequence[str]) -> None:
    for name in names:
        set_field(message, name, getattr(options, name))


def _set_bias(sampling: pb.SamplingOptions, options: types.GenerateOptions) -> None:
    for token_id, bias in options.logit_bias.items():
        try:
            sampling.logit_bias[token_id] = held(bias)
        except (ValueError, TypeError, OverflowError):
            is_id = isinstance(token_id, int) and 0 <= token_id < 1 << 32
            where = f"logit_bias[{token_id!r:.60}]"
            words = bounds.refusal("logit_bias", bias, where) if is_id else f"{where}: is no token id"
            raise InvalidArgument(words, field="logit_bias") from None

"""Checks on a GenerateRequest.

Owns the defaults and bounds of its fields; does not know the tokenizer or the queue. Invariant: nothing is
tokenised before all of this has passed.
"""

from octavo.v1 import inference_pb2 as pb
from scheduler_svc.limits.fields import at_most, flag, name, real, refuse, token_id, whole
from scheduler_svc.limits.prompt import prompt_of
from scheduler_svc.limits.values import CheckedRequest, Limits, ModelFacts


def check_generate(request: pb.GenerateRequest, limits: Limits, model: ModelFacts) -> CheckedRequest:
    """The request with all defaults resolved.

    Raises InvalidArgument naming field, value and limit.
    """
    request_id = name("request_id", request.request_id, limits.request_id)
    prompt = prompt_of(request, limits, model)
    sampling, stopping, output = request.sampling, request.stopping, request.output
    max_tokens, min_tokens = _lengths(stopping, limits)
    return CheckedRequest(
        request_id=request_id,
        prompt=prompt,
        temperature=_temperature(sampling, limits),
        top_p=_top_p(sampling),
        top_k=_top_k(sampling, limits, model),
        min_p=real("sampling.min_p", sampling.min_p, 0, 1),
        seed=sampling.seed if sampling.HasField("seed") else None,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=_stop(stopping, limits),
        stop_token_ids=_stop_token_ids(stopping, limits, model),
        ignore_eos=stopping.ignore_eos,
        include_stop=stopping.include_stop_str_in_output,
        skip_special_tokens=flag(output, "skip_special_tokens", default=True),
        token_ids_only=output.token_ids_only,
        priority=request.priority,
        cache_salt=_cache_salt(request, limits),
        use_prefix_cache=flag(request, "use_prefix_cache", default=True),
        queue_timeout=_queue_timeout(request, limits),
        n=whole("n", request.n if request.HasField("n") else 1, 1, limits.n),
        presence_penalty=_penalty("presence_penalty", sampling.presence_penalty, limits),
        frequency_penalty=_penalty("frequency_penalty", sampling.frequency_penalty, limits),
        repetition_penalty=_repetition_penalty(sampling, limits),
        logit_bias=_logit_bias(sampling, limits, model),
        logprobs=_logprobs(output, "logprobs", limits),
        prompt_logprobs=_logprobs(output, "prompt_logprobs", limits),
        response_format=_response_format(request.response_format, min_tokens, limits),
    )


def _temperature(sampling: pb.SamplingOptions, limits: Limits) -> float:
    if not sampling.HasField("temperature"):
        return 1.0
    return real("sampling.temperature", sampling.temperature, 0, limits.temperature)


def _top_p(sampling: pb.SamplingOptions) -> float:
    if not sampling.HasField("top_p"):
        return 1.0
    return real("sampling.top_p", sampling.top_p, 0, 1, open_low=True)


def _top_k(sampling: pb.SamplingOptions, limits: Limits, model: ModelFacts) -> int:
    top_k = whole("sampling.top_k", sampling.top_k, 0, limits.top_k)
    return top_k if top_k < model.vocab_size else 0


def _lengths(stopping: pb.StoppingOptions, limits: Limits) -> tuple[int | None, int]:
    """max_tokens (None: to the context limit) and min_tokens."""
    max_tokens = None
    if stopping.HasField("max_tokens"):
        max_tokens = whole("stopping.max_tokens", stopping.max_tokens, 1, limits.max_tokens)
    min_tokens = whole("stopping.min_tokens", stopping.min_tokens, 0, limits.max_tokens)
    if max_tokens is not None and min_tokens > max_tokens:
        raise refuse("stopping.min_tokens", f"{min_tokens} is above stopping.max_tokens, {max_tokens}")
    return max_tokens, min_tokens


def _stop(stopping: pb.StoppingOptions, limits: Limits) -> tuple[str, ...]:
    at_most("stopping.stop", len(stopping.stop), limits.stop_strings, "stop strings")
    for place, text in enumerate(stopping.stop):
        field = f"stopping.stop[{place}]"
        if not text:
            raise refuse(field, "is empty")
        at_most(field, len(text), limits.stop_string, "characters")
    return tuple(stopping.stop)


def _stop_token_ids(stopping: pb.StoppingOptions, limits: Limits, model: ModelFacts) -> frozenset[int]:
    ids = stopping.stop_token_ids
    at_most("stopping.stop_token_ids", len(ids), limits.stop_token_ids, "token ids")
    for place, stop_id in enumerate(ids):
        token_id(f"stopping.stop_token_ids[{place}]", stop_id, model.vocab_size)
    return frozenset(ids)


def _cache_salt(request: pb.GenerateRequest, limits: Limits) -> str:
    at_most("cache_salt", len(request.cache_salt), limits.cache_salt, "characters")
    return request.cache_salt


def _queue_timeout(request: pb.GenerateRequest, limits: Limits) -> float | None:
    """Seconds, or None for no bound: an absent timeout is never turned into a number."""
    if not request.HasField("queue_timeout"):
        return None
    duration, limit = request.queue_timeout, limits.queue_timeout_seconds
    seconds: float = duration.seconds + duration.nanos / 1e9
    if not 0 < seconds <= limit:
        raise refuse("queue_timeout", f"{seconds} s is out of (0, {limit}]")
    if not 0 <= duration.nanos < 10**9:
        raise refuse("queue_timeout", f"{seconds} s, its nanos are out of [0, 999999999]")
    return seconds


def _penalty(name: str, value: float, limits: Limits) -> float:
    return real(f"sampling.{name}", value, -limits.penalty, limits.penalty)


def _repetition_penalty(sampling: pb.SamplingOptions, limits: Limits) -> float:
    if not sampling.HasField("repetition_penalty"):
        return 1.0
    value = sampling.repetition_penalty
    return real("sampling.repetition_penalty", value, 0, limits.repetition_penalty, open_low=True)


def _logit_bias(
    sampling: pb.SamplingOptions, limits: Limits, model: ModelFacts
) -> tuple[tuple[int, float], ...]:
    """(id, value) pairs by id, without those that change nothing."""
    bias = sampling.logit_bias
    at_most("sampling.logit_bias", len(bias), limits.logit_bias_entries, "entries")
    for biased_id, value in bias.items():
        token_id("sampling.logit_bias", biased_id, model.vocab_size)
        real(f"sampling.logit_bias[{biased_id}]", value, -limits.logit_bias, limits.logit_bias)
    return tuple(sorted((biased_id, value) for biased_id, value in bias.items() if value))


def _logprobs(output: pb.OutputOptions, name: str, limits: Limits) -> int | None:
    """Alternatives to report, None when nothing is asked for."""
    if not output.HasField(name):
        return None
    return whole(f"output.{name}", getattr(output, name), 0, limits.top_logprobs)


def _response_format(
    response_format: pb.ResponseFormat, min_tokens: int, limits: Limits
) -> tuple[str, str] | None:
    """Its kind and text. A grammar says itself when the output may end."""
    kind = response_format.WhichOneof("format")
    if kind is None:
        return None
    field, text = f"response_format.{kind}", getattr(response_format, kind)
    at_most(field, len(text.encode()), limits.response_format_bytes, "bytes")
    if min_tokens:
        raise refuse("stopping.min_tokens", f"{min_tokens} beside {field}, which says when the output ends")
    return kind, text

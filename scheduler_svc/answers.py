"""From an outbox to protobuf: the events of one request, or of many on one stream.

Owns the shape and size of response messages; knows neither engine nor gRPC. Invariant: the events of a
sequence leave in the order accepted, delta, finished or error, and a batch message stays near MESSAGE_BYTES.
"""

from collections.abc import Iterable, Iterator, Sequence

from octavo.errors import OctavoError
from octavo.v1 import inference_pb2
from scheduler_svc.streams import Pending

MESSAGE_BYTES = 1 << 20
"""A batch message is cut after the event that passes this estimate."""


def single(pending: Pending) -> Iterator[inference_pb2.GenerateResponse]:
    """The responses of a Generate stream from what one sequence said.

    An error is not among them: it is the call's status.
    """
    if pending.accepted is not None:
        yield inference_pb2.GenerateResponse(accepted=pending.accepted)
    if pending.has_delta:
        yield inference_pb2.GenerateResponse(delta=_delta(pending))
    if pending.finished is not None:
        yield inference_pb2.GenerateResponse(finished=pending.finished)


def batches(taken: Iterable[Pending]) -> Iterator[inference_pb2.GenerateBatchResponse]:
    """The responses of a GenerateBatch stream: all that was pending, in few messages."""
    message = inference_pb2.GenerateBatchResponse()
    size = 0
    for pending in taken:
        size += _fill(message, pending)
        if size > MESSAGE_BYTES:
            yield message
            message, size = inference_pb2.GenerateBatchResponse(), 0
    if message.events:
        yield message


def error_event(request_id: str, error: OctavoError) -> inference_pb2.BatchEvent:
    """A request of a batch that was refused or failed."""
    return inference_pb2.BatchEvent(
        request_id=request_id,
        error=inference_pb2.RequestError(
            code=error.status.value[0], reason=error.reason, message=error.message, field=error.field
        ),
    )


def _fill(message: inference_pb2.GenerateBatchResponse, pending: Pending) -> int:
    """Appends a sequence's events. Returns about how many bytes they take."""
    events, request_id = message.events, pending.request_id
    size = 64
    if pending.accepted is not None:
        events.add(request_id=request_id, accepted=pending.accepted)
        if pending.accepted.prompt_logprobs:
            size += pending.accepted.ByteSize()
    if pending.has_delta:
        event = events.add(request_id=request_id)
        delta = event.delta
        delta.index = pending.index
        delta.token_ids.extend(pending.token_ids)
        size += 4 * len(pending.token_ids)
        if pending.text:
            delta.text = "".join(pending.text)
            size += 4 * len(delta.text)
        if pending.logprobs:
            delta.logprobs.extend(pending.logprobs)
            size += delta.ByteSize()
    if pending.finished is not None:
        events.add(request_id=request_id, finished=pending.finished)
    if pending.error is not None:
        events.append(error_event(request_id, pending.error))
    return size


def _delta(pending: Pending) -> inference_pb2.Delta:
    return inference_pb2.Delta(
        index=pending.index,
        text="".join(pending.text),
        token_ids=pending.token_ids,
        logprobs=pending.logprobs,
    )


def whole(request_id: str, sequences: Sequence[Pending]) -> inference_pb2.GenerateOnceResponse:
    """The answer of GenerateOnce from all that its sequences said, by index; each has its end."""
    response = inference_pb2.GenerateOnceResponse(request_id=request_id)
    for pending in sequences:
        assert pending.finished is not None
        response.completions.add(
            index=pending.index,
            text="".join(pending.text),
            token_ids=pending.token_ids,
            logprobs=pending.logprobs,
            finished=pending.finished,
        )
        if pending.accepted is not None:
            response.prompt_logprobs.extend(pending.accepted.prompt_logprobs)
        _add_usage(response.usage, pending.finished.usage)
    return response


def _add_usage(total: inference_pb2.Usage, one: inference_pb2.Usage) -> None:
    """Counts the prompt once and sums the rest."""
    total.prompt_tokens = one.prompt_tokens
    total.cached_prompt_tokens = one.cached_prompt_tokens
    total.completion_tokens += one.completion_tokens
    total.preemptions += one.preemptions
    total.shared_blocks_saved += one.shared_blocks_saved

"""A scheduler of words: echoes prompts over the real gRPC services, with scripted refusals.

Owns the answers; knows no scheduler. Invariant: what it received stands in `seen`, in order.
"""

import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from octavo import errors
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc, kv_cache_pb2_grpc
from octavo.v1 import kv_cache_pb2 as kv

SERVICE = "octavo.v1.InferenceService"
REFUSALS: dict[str, errors.OctavoError] = {
    "full": errors.ResourceExhausted("queue is full: 4096 requests", retry_after=1.5),
    "long": errors.InvalidArgument("max_tokens: 0 is less than 1", field="max_tokens"),
    "lost": errors.Unavailable("no worker", retry_after=2.0),
    "twice": errors.AlreadyExists("request id is live"),
    "beam": errors.Unimplemented("n: 2 is not supported yet", field="n"),
    "pool": errors.FailedPrecondition("needs 9 blocks, the pool has 8", reason="EXCEEDS_KV_POOL"),
    "late": errors.DeadlineExceeded("waited 1 s"),
    "gone": errors.NotFound("no such request"),
    "stale": errors.StaleEpoch("another session"),
    "bug": errors.Internal("internal error"),
}


def refuse(context: grpc.ServicerContext, error: errors.OctavoError) -> None:
    context.abort_with_status(rpc_status.to_status(errors.to_status(error)))


class StubScheduler:
    """Listens on a free port from start to stop."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.cancelled = threading.Event()
        self.most_open = 0
        self.refusals_left = 2
        """How often a prompt that begins with "flaky" is still refused as UNAVAILABLE."""
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self.health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(Inference(self), self._server)
        kv_cache_pb2_grpc.add_KvCacheServiceServicer_to_server(KvCache(), self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def start(self) -> None:
        self.serving(True)
        self._server.start()

    def serving(self, ready: bool) -> None:
        status = (
            health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        self.health.set(SERVICE, status)

    def stop(self) -> None:
        self._server.stop(None).wait()


def words_of(request: pb.GenerateRequest) -> list[str]:
    match request.WhichOneof("prompt"):
        case "text":
            return request.text.split()
        case "chat":
            return request.chat.messages[-1].content.split()
        case _:
            return [str(token) for token in request.token_ids.ids]


def finished(request: pb.GenerateRequest, words: list[str], index: int = 0) -> pb.Finished:
    usage = pb.Usage(
        prompt_tokens=len(words),
        completion_tokens=len(words),
        cached_prompt_tokens=1,
        shared_blocks_saved=3 if index else 0,
    )
    return pb.Finished(index=index, reason=pb.FINISH_REASON_STOP, stop="END", usage=usage)


def position_logprobs(request: pb.GenerateRequest, token_id: int) -> list[pb.PositionLogprobs]:
    """The token at -1, and as many others as were asked for; the last of them at minus infinity."""
    if not request.output.HasField("logprobs"):
        return []
    top = [
        pb.TokenLogprob(token_id=100 + rank, logprob=-2 - rank, token=b"\xc3")
        for rank in range(request.output.logprobs)
    ]
    sampled = pb.TokenLogprob(token_id=token_id, logprob=-1, token=b"w")
    return [pb.PositionLogprobs(sampled=sampled, top=top)]


def prompt_logprobs(request: pb.GenerateRequest, length: int) -> list[pb.PositionLogprobs]:
    if not request.output.HasField("prompt_logprobs"):
        return []
    rest = [
        pb.PositionLogprobs(sampled=pb.TokenLogprob(token_id=place, logprob=-9999))
        for place in range(1, length)
    ]
    return [pb.PositionLogprobs(), *rest]


class Inference(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, stub: StubScheduler) -> None:
        self._stub = stub

    def Generate(  # noqa: N802 - gRPC's name
        self, request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        self._stub.seen.append(request)
        words = words_of(request)
        if words[0] in REFUSALS:
            refuse(context, REFUSALS[words[0]])
        if words[0] == "flaky" and self._stub.refusals_left:
            self._stub.refusals_left -= 1
            refuse(context, REFUSALS["lost"])
        accepted = pb.Accepted(
            request_id=request.request_id or "drawn",
            prompt_tokens=len(words),
            prompt_logprobs=prompt_logprobs(request, len(words)),
        )
        if words[0] == "endless":
            context.add_callback(self._stub.cancelled.set)  # before the client can leave
        yield pb.GenerateResponse(accepted=accepted)
        if words[0] == "endless":
            while context.is_active():
                yield pb.GenerateResponse(delta=pb.Delta(text="more ", token_ids=[1]))
                self._stub.cancelled.wait(0.01)
            return
        for index in range(max(1, request.n)):
            for number, word in enumerate(words):
                logprobs = position_logprobs(request, number)
                delta = pb.Delta(index=index, text=word + " ", token_ids=[number], logprobs=logprobs)
                yield pb.GenerateResponse(delta=delta)
        if words[-1] == "break":
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        for index in range(max(1, request.n)):
            yield pb.GenerateResponse(finished=finished(request, words, index))

    def GenerateOnce(  # noqa: N802
        self, request: pb.GenerateOnceRequest, context: grpc.ServicerContext
    ) -> pb.GenerateOnceResponse:
        self._stub.seen.append(request.request)
        words = words_of(request.request)
        if words[0] in REFUSALS:
            refuse(context, REFUSALS[words[0]])
        end = finished(request.request, words)
        logprobs = [one for number in range(len(words)) for one in position_logprobs(request.request, number)]
        choice = pb.Completion(
            text=" ".join(words), token_ids=range(len(words)), finished=end, logprobs=logprobs
        )
        return pb.GenerateOnceResponse(
            request_id="drawn",
            completions=[choice],
            usage=end.usage,
            prompt_logprobs=prompt_logprobs(request.request, len(words)),
        )

    def GenerateBatch(  # noqa: N802
        self, requests: Iterator[pb.GenerateBatchRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateBatchResponse]:
        """Ends each request only when the next has come, or after the last."""
        held: list[pb.GenerateRequest] = []
        for action in requests:
            request = action.generate
            self._stub.seen.append(request)
            held.append(request)
            self._stub.most_open = max(self._stub.most_open, len(held))
            if words_of(request)[0] == "hangup":
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            if len(held) == 2:
                yield pb.GenerateBatchResponse(events=[e for one in held for e in batch_events(one)])
                held = []
        yield pb.GenerateBatchResponse(events=[e for one in held for e in batch_events(one)])

    def Abort(self, request: pb.AbortRequest, context: grpc.ServicerContext) -> pb.AbortResponse:  # noqa: N802
        live = [one for one in request.request_ids if one.startswith("live")]
        return pb.AbortResponse(aborted_request_ids=live)

    def Tokenize(  # noqa: N802
        self, request: pb.TokenizeRequest, context: grpc.ServicerContext
    ) -> pb.TokenizeResponse:
        self._stub.seen.append(request)
        return pb.TokenizeResponse(token_ids=[len(word) for word in request.text.split()])

    def Detokenize(  # noqa: N802
        self, request: pb.DetokenizeRequest, context: grpc.ServicerContext
    ) -> pb.DetokenizeResponse:
        return pb.DetokenizeResponse(text=" ".join(str(token) for token in request.token_ids))

    def GetModelInfo(  # noqa: N802
        self, request: pb.GetModelInfoRequest, context: grpc.ServicerContext
    ) -> pb.GetModelInfoResponse:
        return pb.GetModelInfoResponse(model_id="words", max_model_len=64, eos_token_ids=[2, 3], block_size=4)


def batch_events(request: pb.GenerateRequest) -> list[pb.BatchEvent]:
    words, name = words_of(request), request.request_id
    if words[0] in REFUSALS:
        error = REFUSALS[words[0]]
        said = pb.RequestError(
            code=error.status.value[0], reason=error.reason, message=error.message, field=error.field
        )
        return [pb.BatchEvent(request_id=name, error=said)]
    deltas = [
        pb.BatchEvent(request_id=name, delta=pb.Delta(text=word + " ", token_ids=[1])) for word in words
    ]
    accepted = pb.BatchEvent(request_id=name, accepted=pb.Accepted(request_id=name, prompt_tokens=len(words)))
    return [accepted, *deltas, pb.BatchEvent(request_id=name, finished=finished(request, words))]


class KvCache(kv_cache_pb2_grpc.KvCacheServiceServicer):
    def GetKvCacheStats(  # noqa: N802
        self, request: kv.GetKvCacheStatsRequest, context: grpc.ServicerContext
    ) -> kv.GetKvCacheStatsResponse:
        one = kv.RequestSummary(request_id="a", state=kv.REQUEST_STATE_PREEMPTED, blocks=2, age_seconds=1.5)
        return kv.GetKvCacheStatsResponse(
            block_size=4,
            num_blocks=8,
            free_blocks=3,
            evictable_blocks=1,
            active_blocks=4,
            shared_blocks=2,
            block_refs=7,
            worker_ready=True,
            worker_epoch="00ff",
            requests=[one] if request.include_requests else [],
        )

    def GetPoolMap(  # noqa: N802
        self, request: kv.GetPoolMapRequest, context: grpc.ServicerContext
    ) -> kv.GetPoolMapResponse:
        return kv.GetPoolMapResponse(
            block_size=4,
            num_blocks=3,
            state=bytes([0, 1, 2]),
            ref_count=np.array([0, 0, 2], "<i4").tobytes(),
            fill=np.array([0, 4, 3], "<i4").tobytes(),
            cached=bytes([0, 1, 1]),
        )

    def ExplainRequest(  # noqa: N802
        self, request: kv.ExplainRequestRequest, context: grpc.ServicerContext
    ) -> kv.ExplainRequestResponse:
        if request.request_id != "a":
            refuse(context, REFUSALS["gone"])
        return kv.ExplainRequestResponse(
            text="Waits for KV blocks.\nIt needs 3 blocks.",
            request=kv.RequestSummary(request_id="a", state=kv.REQUEST_STATE_WAITING),
            wait_reasons=[kv.WAIT_REASON_NO_BLOCKS],
            ahead=1,
            need=kv.BlockNeed(context=4, hits=1),
            free_blocks=1,
            evictable_blocks=1,
            promised_blocks=1,
            next_evicted_blocks=[7],
            next_victim_request_id="b",
        )

    def GetSequenceBlocks(  # noqa: N802
        self, request: kv.GetSequenceBlocksRequest, context: grpc.ServicerContext
    ) -> kv.GetSequenceBlocksResponse:
        if request.request_id != "a":
            refuse(context, REFUSALS["gone"])
        block = kv.SequenceBlock(block_id=2, ref_count=2, fill=3, hash_prefix="ab", tier="device")
        return kv.GetSequenceBlocksResponse(request_id="a", num_tokens=3, blocks=[block])

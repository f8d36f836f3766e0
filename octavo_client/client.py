"""The synchronous client of a scheduler.

Owns one channel; knows no process and no command. Invariant: every failed call raises one error of
octavo_client.errors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc
import grpc.experimental
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.trace_context import outgoing
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc, kv_cache_pb2_grpc
from octavo.v1 import kv_cache_pb2 as kv
from octavo_client import channel as settings
from octavo_client import convert, types, views
from octavo_client.calls import Batch, Stream
from octavo_client.errors import NotReady, from_call

T = TypeVar("T")
_POLLED_BY_THE_READER = (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)
"""Who reads a stream waits for its messages itself, instead of a thread that would have to wake it up."""


class Client:
    """A connection to one scheduler. Cheap to make; nothing is sent before the first call. Thread-safe."""

    def __init__(
        self,
        server: str | None = None,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        timeout: float = 30.0,
    ) -> None:
        """server: host:port or unix:/path (default: OCTAVO_SERVER, then 127.0.0.1:7450).

        timeout: seconds allowed to a short call.
        """
        self.target = settings.server_address(server)
        self.timeout = timeout
        options = [*settings.channel_options(), _POLLED_BY_THE_READER]
        if credentials is None:
            self._channel = grpc.insecure_channel(self.target, options=options)
        else:
            self._channel = grpc.secure_channel(self.target, credentials, options=options)
        self._inference: Any = inference_pb2_grpc.InferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._kv: Any = kv_cache_pb2_grpc.KvCacheServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[types.Message] | None = None,
        token_ids: Sequence[int] | None = None,
        request_id: str = "",
        deadline: float | None = None,
        **options: Unpack[types.OptionFields],
    ) -> Stream:
        """Sends one request and returns its events: Accepted, Deltas, one Finished a sequence.

        Give exactly one of prompt, messages and token_ids; options are the fields of GenerateOptions;
        deadline in seconds, None for none.
        """
        given = types.GenerateOptions(**options)
        return self.send(types.Request(prompt, messages, token_ids, given, request_id), deadline=deadline)

    def send(self, request: types.Request, *, deadline: float | None = None) -> Stream:
        """stream() of a ready-made Request."""
        message = convert.to_request(request)
        return Stream(self._inference.Generate(message, timeout=deadline, metadata=outgoing()), self.target)

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[types.Message] | None = None,
        token_ids: Sequence[int] | None = None,
        request_id: str = "",
        deadline: float | None = None,
        **options: Unpack[types.OptionFields],
    ) -> types.Completion:
        """The whole answer at once; the arguments of stream()."""
        request = types.Request(prompt, messages, token_ids, types.GenerateOptions(**options), request_id)
        message = pb.GenerateOnceRequest(request=convert.to_request(request))
        return convert.from_completion(self._call(self._inference.GenerateOnce, message, deadline))

    def batch(
        self, requests: Iterable[types.Request], *, max_in_flight: int = 256, deadline: float | None = None
    ) -> Batch:
        """Runs many requests over one stream, at most max_in_flight at a time.

        A refused request is a RequestFailed event. Requests without an id get one. `requests` is read on
        another thread, as room comes.
        """
        batch = Batch(
            lambda sent: self._inference.GenerateBatch(sent, timeout=deadline, metadata=outgoing()),
            self.target,
            max_in_flight,
        )
        return batch.begin(requests)

    def abort(self, request_ids: Iterable[str]) -> tuple[str, ...]:
        """Ends requests and frees their blocks; returns those that were live. Unknown ids are no error."""
        message = pb.AbortRequest(request_ids=list(request_ids))
        answer: pb.AbortResponse = self._call(self._inference.Abort, message)
        return tuple(answer.aborted_request_ids)

    def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[types.Message] | None = None,
        add_special_tokens: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """The token ids of a text, or of a chat with the model's template."""
        message = convert.to_tokenize(prompt, messages, add_special_tokens, tools, chat_template_kwargs)
        answer: pb.TokenizeResponse = self._call(self._inference.Tokenize, message)
        return tuple(answer.token_ids)

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool | None = None) -> str:
        """The text of token ids."""
        message = convert.to_detokenize(token_ids, skip_special_tokens)
        answer: pb.DetokenizeResponse = self._call(self._inference.Detokenize, message)
        return answer.text

    def model_info(self) -> types.ModelInfo:
        """What is served."""
        return convert.from_model_info(self._call(self._inference.GetModelInfo, pb.GetModelInfoRequest()))

    def stats(self, *, requests: bool = False) -> views.PoolStats:
        """Gauges and counters of the KV pool; with requests=True one RequestView for each live request."""
        message = kv.GetKvCacheStatsRequest(include_requests=requests)
        return convert.from_stats(self._call(self._kv.GetKvCacheStats, message))

    def pool_map(self) -> views.PoolMap:
        """State, ref count, fill and cached flag of every block."""
        return convert.from_pool_map(self._call(self._kv.GetPoolMap, kv.GetPoolMapRequest()))

    def sequence_blocks(self, request_id: str, index: int | None = None) -> views.SequenceBlocks:
        """The block table of a live request's n-th sequence; None: the first that lives. Raises NotFound."""
        message = kv.GetSequenceBlocksRequest(request_id=request_id, index=index)
        return convert.from_sequence_blocks(self._call(self._kv.GetSequenceBlocks, message))

    def explain(self, request_id: str, index: int | None = None) -> views.Explanation:
        """Why a live request's sequence waits, or what it was served; None: the first that lives."""
        message = kv.ExplainRequestRequest(request_id=request_id, index=index)
        return convert.from_explanation(self._call(self._kv.ExplainRequest, message))

    def is_ready(self) -> bool:
        """Whether the scheduler answers and a worker is live. Never raises for a server that is not there."""
        return self.readiness() == ""

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Waits until requests are served. Raises NotReady, saying what is missing, after timeout seconds."""
        end = time.monotonic() + timeout
        while (missing := self.readiness()) != "":
            if time.monotonic() >= end:
                raise NotReady(settings.not_ready_message(self.target, timeout, missing))
            time.sleep(settings.POLL_SECONDS)

    def close(self) -> None:
        """Closes the channel; calls in progress are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def readiness(self) -> str:
        """What is missing, in words; empty when ready."""
        message = health_pb2.HealthCheckRequest(service=settings.INFERENCE_SERVICE)
        try:
            status = self._health.Check(message, timeout=self.timeout).status
        except grpc.RpcError as error:
            return settings.health_failure(from_call(error, self.target))
        return "" if status == health_pb2.HealthCheckResponse.SERVING else settings.NOT_SERVING

    def _call(self, method: Callable[..., T], message: object, timeout: float | None = -1.0) -> T:
        """One unary call; timeout -1 means the client's own, None means none."""
        try:
            return method(message, timeout=self.timeout if timeout == -1.0 else timeout, metadata=outgoing())
        except grpc.RpcError as error:
            raise from_call(error, self.target) from None

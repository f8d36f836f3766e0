"""The asynchronous client of a scheduler: the calls of Client, awaited.

Owns one channel on the running event loop; knows no process. Invariant: every failed call raises one error
of octavo_client.errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.trace_context import outgoing
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc, kv_cache_pb2_grpc
from octavo.v1 import kv_cache_pb2 as kv
from octavo_client import channel as settings
from octavo_client import convert, types, views
from octavo_client.aio_calls import AsyncBatch, AsyncStream, Requests
from octavo_client.errors import NotReady, from_call


class AsyncClient:
    """A connection to one scheduler, for one event loop. Nothing is sent before the first call."""

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
        options = settings.channel_options()
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(self.target, options=options)
        else:
            self._channel = grpc.aio.secure_channel(self.target, credentials, options=options)
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
    ) -> AsyncStream:
        """Sends one request and returns its events; see Client.stream."""
        given = types.GenerateOptions(**options)
        return self.send(types.Request(prompt, messages, token_ids, given, request_id), deadline=deadline)

    def send(self, request: types.Request, *, deadline: float | None = None) -> AsyncStream:
        """stream() of a ready-made Request."""
        return AsyncStream(
            self._inference.Generate(convert.to_request(request), timeout=deadline, metadata=outgoing()),
            self.target,
        )

    async def generate(
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
        return convert.from_completion(await self._call(self._inference.GenerateOnce, message, deadline))

    def batch(
        self, requests: Requests, *, max_in_flight: int = 256, deadline: float | None = None
    ) -> AsyncBatch:
        """Runs many requests over one stream; see Client.batch. `requests` may be an async iterable."""
        return AsyncBatch(
            lambda sent: self._inference.GenerateBatch(sent, timeout=deadline, metadata=outgoing()),
            requests,
            self.target,
            max_in_flight,
        )

    async def abort(self, request_ids: Iterable[str]) -> tuple[str, ...]:
        """Ends requests and frees their blocks; returns those that were live. Unknown ids are no error."""
        answer = await self._call(self._inference.Abort, pb.AbortRequest(request_ids=list(request_ids)))
        return tuple(answer.aborted_request_ids)

    async def tokenize(
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
        return tuple((await self._call(self._inference.Tokenize, message)).token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool | None = None) -> str:
        """The text of token ids."""
        message = convert.to_detokenize(token_ids, skip_special_tokens)
        return str((await self._call(self._inference.Detokenize, message)).text)

    async def model_info(self) -> types.ModelInfo:
        """What is served."""
        return convert.from_model_info(
            await self._call(self._inference.GetModelInfo, pb.GetModelInfoRequest())
        )

    async def stats(self, *, requests: bool = False) -> views.PoolStats:
        """Gauges and counters of the KV pool; with requests=True one RequestView for each live request."""
        message = kv.GetKvCacheStatsRequest(include_requests=requests)
        return convert.from_stats(await self._call(self._kv.GetKvCacheStats, message))

    async def pool_map(self) -> views.PoolMap:
        """State, ref count, fill and cached flag of every block."""
        return convert.from_pool_map(await self._call(self._kv.GetPoolMap, kv.GetPoolMapRequest()))

    async def sequence_blocks(self, request_id: str, index: int | None = None) -> views.SequenceBlocks:
        """The block table of a live request's n-th sequence; None: the first that lives. Raises NotFound."""
        message = kv.GetSequenceBlocksRequest(request_id=request_id, index=index)
        return convert.from_sequence_blocks(await self._call(self._kv.GetSequenceBlocks, message))

    async def explain(self, request_id: str, index: int | None = None) -> views.Explanation:
        """Why a live request's sequence waits, or what it was served; None: the first that lives."""
        message = kv.ExplainRequestRequest(request_id=request_id, index=index)
        return convert.from_explanation(await self._call(self._kv.ExplainRequest, message))

    async def is_ready(self) -> bool:
        """Whether the scheduler answers and a worker is live. Never raises for a server that is not there."""
        return await self.readiness() == ""

    async def wait_ready(self, timeout: float = 60.0) -> None:  # noqa: ASYNC109 - the limit is part of the message
        """Waits until requests are served. Raises NotReady, saying what is missing, after timeout seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while (missing := await self.readiness()) != "":
            if loop.time() >= end:
                raise NotReady(settings.not_ready_message(self.target, timeout, missing))
            await asyncio.sleep(settings.POLL_SECONDS)

    async def close(self) -> None:
        """Closes the channel; calls in progress are cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def readiness(self) -> str:
        """What is missing until requests are served, in words; empty when ready."""
        message = health_pb2.HealthCheckRequest(service=settings.INFERENCE_SERVICE)
        try:
            status = (await self._health.Check(message, timeout=self.timeout)).status
        except grpc.RpcError as error:
            return settings.health_failure(from_call(error, self.target))
        return "" if status == health_pb2.HealthCheckResponse.SERVING else settings.NOT_SERVING

    async def _call(self, method: Any, message: object, limit: float | None = -1.0) -> Any:
        """One unary call; limit -1 means the client's own timeout, None means none."""
        try:
            return await method(
                message, timeout=self.timeout if limit == -1.0 else limit, metadata=outgoing()
            )
        except grpc.RpcError as error:
            raise from_call(error, self.target) from None

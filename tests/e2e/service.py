"""A bare asynchronous client of a running service, for tests.

Owns the collection of one request's events into a Reply; knows no process. Invariant: it uses the generated
stubs alone, so that the typed client is not needed to test the services, nor trusted by those tests.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc, kv_cache_pb2, kv_cache_pb2_grpc

SERVICE = "octavo.v1.InferenceService"
SERVING = health_pb2.HealthCheckResponse.SERVING
PATIENCE = 60.0
"""Seconds after which what a test waits for is thought to be lost. No test is about this time."""


@dataclass
class Reply:
    """What came back for one request; tokens, text and reason as if it had one sequence. branches: tokens by
    sequence, as texts and ends (reason and the stop that matched) are. gaps: seconds between events.
    """

    request_id: str = ""
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    reason: str = ""
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0
    error_reason: str = ""
    stop_token_id: int | None = None
    gaps: list[float] = field(default_factory=list)
    branches: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    ends: dict[int, tuple[str, str | int | None]] = field(default_factory=dict)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)

    def take(self, event: pb.GenerateResponse) -> None:
        match event.WhichOneof("event"):
            case "accepted":
                self.request_id, self.prompt_tokens = event.accepted.request_id, event.accepted.prompt_tokens
                self.prompt_logprobs += values_of(event.accepted.prompt_logprobs)
            case "delta":
                self.tokens += event.delta.token_ids
                self.branches.setdefault(event.delta.index, []).extend(event.delta.token_ids)
                self.text += event.delta.text
                self.texts[event.delta.index] = self.texts.get(event.delta.index, "") + event.delta.text
                self.logprobs += values_of(event.delta.logprobs)
            case "finished":
                done = event.finished
                self.reason = pb.FinishReason.Name(done.reason).removeprefix("FINISH_REASON_")
                self.cached = done.usage.cached_prompt_tokens
                self.preemptions += done.usage.preemptions
                self.completion_tokens, self.error_reason = done.usage.completion_tokens, done.error_reason
                matched = done.WhichOneof("matched")
                self.ends[done.index] = (self.reason, getattr(done, matched) if matched else None)
                if matched == "stop_token_id":
                    self.stop_token_id = done.stop_token_id


def values_of(positions: Sequence[pb.PositionLogprobs]) -> list[float]:
    """All values, flat."""
    return [one.logprob for position in positions for one in (position.sampled, *position.top)]


def request(
    prompt: str | Sequence[int],
    max_tokens: int | None = 16,
    *,
    temperature: float = 0.0,
    seed: int | None = 0,
    stop: Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    ignore_eos: bool = True,
    request_id: str = "",
    cache_salt: str = "",
    priority: int = 0,
    use_prefix_cache: bool = True,
    top_k: int = 0,
    min_tokens: int = 0,
    queue_timeout: float | None = None,
) -> pb.GenerateRequest:
    """A request with the tests' defaults: greedy, EOS ignored."""
    message = pb.GenerateRequest(
        request_id=request_id, cache_salt=cache_salt, priority=priority, use_prefix_cache=use_prefix_cache,
        sampling=pb.SamplingOptions(temperature=temperature, seed=seed, top_k=top_k),
        stopping=pb.StoppingOptions(
            max_tokens=max_tokens, stop=stop, stop_token_ids=stop_token_ids, ignore_eos=ignore_eos,
            min_tokens=min_tokens,
        ),
    )  # fmt: skip
    if queue_timeout is not None:
        message.queue_timeout.FromMilliseconds(int(queue_timeout * 1000))
    if isinstance(prompt, str):
        message.text = prompt
    else:
        message.token_ids.ids.extend(prompt)
    return message


class Service:
    """Stubs of one address. `async with Service(address) as service`."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.inference: Any = inference_pb2_grpc.InferenceServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self.kv: Any = kv_cache_pb2_grpc.KvCacheServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)

    async def __aenter__(self) -> "Service":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def ready(self) -> bool:
        """Whether the inference service is ready to take work; False too where nobody listens. Raises
        AioRpcError (DEADLINE_EXCEEDED) where somebody does and says nothing.
        """
        try:
            check = health_pb2.HealthCheckRequest(service=SERVICE)
            return bool((await self.health.Check(check, timeout=PATIENCE)).status == SERVING)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            return False

    async def wait_ready(self, wanted: bool = True, timeout: float = PATIENCE) -> float:  # noqa: ASYNC109
        """Polls until readiness is as wanted; returns the seconds it took. Raises TimeoutError."""
        start = time.monotonic()
        while await self.ready() != wanted:
            if time.monotonic() - start > timeout:
                raise TimeoutError(f"readiness is still {not wanted} after {timeout} s")
            await asyncio.sleep(0.02)
        return time.monotonic() - start

    async def events(self, message: pb.GenerateRequest, **call: Any) -> AsyncIterator[pb.GenerateResponse]:
        async for event in self.inference.Generate(message, **call):
            yield event

    async def run(self, message: pb.GenerateRequest, reply: Reply | None = None, **call: Any) -> Reply:
        """Streams the request to its end. A reply given is filled while it runs."""
        reply = reply or Reply()
        last = time.monotonic()
        async for event in self.events(message, **call):
            now = time.monotonic()
            reply.gaps.append(now - last)
            last = now
            reply.take(event)
        return reply

    async def generate(
        self, prompt: str | Sequence[int], max_tokens: int | None = 16, **options: Any
    ) -> Reply:
        return await self.run(request(prompt, max_tokens, **options))

    async def run_all(self, messages: Sequence[pb.GenerateRequest]) -> list[Reply]:
        """All at once; replies in the order of the requests."""
        return list(await asyncio.gather(*(self.run(message) for message in messages)))

    async def stats(self) -> kv_cache_pb2.GetKvCacheStatsResponse:
        answer: kv_cache_pb2.GetKvCacheStatsResponse = await self.kv.GetKvCacheStats(
            kv_cache_pb2.GetKvCacheStatsRequest(include_requests=True)
        )
        return answer

    async def wait_waiting(self, requests: int, timeout: float = PATIENCE) -> None:  # noqa: ASYNC109
        """Polls until so many requests wait. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while (await self.stats()).waiting_requests != requests:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)

    async def wait_idle(self, timeout: float = PATIENCE) -> kv_cache_pb2.GetKvCacheStatsResponse:  # noqa: ASYNC109
        """Polls until no request runs or waits and no block is held. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while True:
                stats = await self.stats()
                if not (stats.running_requests or stats.waiting_requests or stats.active_blocks):
                    return stats
                await asyncio.sleep(0.02)

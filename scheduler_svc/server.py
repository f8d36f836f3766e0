"""The gRPC server: what is served, where, and how it goes down.

Owns the server object, health and reflection; knows no method's work. Invariant: readiness is SERVING only
while a worker can run steps and the service is not on its way out, and liveness holds for as long as the
process answers.
"""

import asyncio
import logging

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octavo import transport
from octavo.binding import bind
from octavo.interceptors import ErrorMapping
from octavo.v1 import inference_pb2, inference_pb2_grpc, kv_cache_pb2, kv_cache_pb2_grpc

_log = logging.getLogger(__name__)
INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
KV_CACHE = kv_cache_pb2.DESCRIPTOR.services_by_name["KvCacheService"].full_name
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_SLACK_BYTES = 1 << 20
_LAST_WORDS_SECONDS = 2.0


def receive_bound(max_prompt_bytes: int, max_prompt_tokens: int) -> int:
    """Bytes of the largest request taken from the wire: past the prompt limits, so that `limits` can name
    the field.
    """
    return min(transport.LARGEST_MESSAGE, 4 * max_prompt_bytes + 10 * max_prompt_tokens + _SLACK_BYTES)


class Server:
    """Serves both public services. `start` binds and returns the address."""

    def __init__(
        self,
        inference: inference_pb2_grpc.InferenceServiceServicer,
        kv_cache: kv_cache_pb2_grpc.KvCacheServiceServicer,
        max_receive: int,
        max_concurrent_streams: int,
    ) -> None:
        self._server = grpc.aio.server(
            interceptors=[ErrorMapping()],
            options=transport.server_options(max_receive),
            maximum_concurrent_rpcs=max_concurrent_streams,
        )
        self._health = health.aio.HealthServicer()
        self._ready = False
        self._draining = False
        self._tasks: set[asyncio.Task[None]] = set()
        add: list[tuple[object, object]] = [
            (inference_pb2_grpc.add_InferenceServiceServicer_to_server, inference),
            (kv_cache_pb2_grpc.add_KvCacheServiceServicer_to_server, kv_cache),
            (health_pb2_grpc.add_HealthServicer_to_server, self._health),
        ]
        for register, servicer in add:
            register(servicer, self._server)  # type: ignore[operator]
        names = [INFERENCE, KV_CACHE, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server)

    async def start(self, address: str) -> str:
        """Binds and serves. Raises RuntimeError when the address cannot be bound."""
        await self._health.set("", _SERVING)
        await self._publish()
        try:
            port = bind(self._server, address)
        except OSError as error:
            raise RuntimeError(f"--listen {address}: {error}") from error
        await self._server.start()
        return transport.bound_address(address, port)

    def set_ready(self, ready: bool) -> None:
        """Whether steps can run. Returns at once."""
        self._ready = ready
        self._spawn()

    async def begin_drain(self) -> None:
        """NOT_SERVING from here on."""
        self._draining = True
        await self._publish()

    async def stop(self) -> None:
        """Lets calls write their last messages, ends what still runs, and the server."""
        await self._server.stop(grace=_LAST_WORDS_SECONDS)

    def _spawn(self) -> None:
        task = asyncio.get_running_loop().create_task(self._publish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self) -> None:
        status = _SERVING if self._ready and not self._draining else _NOT_SERVING
        for name in (INFERENCE, KV_CACHE):
            await self._health.set(name, status)

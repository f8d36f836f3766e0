"""The methods of octavo.v1.KvCacheService: the pool, seen live.

Owns the translation of the core's views; knows no scheduling rule. Invariant: every answer is one moment of
the core, taken between two of its inputs.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio

from octavo import arrays
from octavo.errors import NotFound
from octavo.logging import epoch_text
from octavo.v1 import kv_cache_pb2, kv_cache_pb2_grpc
from scheduler_svc.core.plan import SeqId
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SeqState, SequenceView
from scheduler_svc.engine import Engine
from scheduler_svc.explain import explain_response
from scheduler_svc.kv_stream import DEVICE_TIER, snapshot_messages
from scheduler_svc.limits import Limits, check_explain_request, check_flush, check_sequence_blocks
from scheduler_svc.requests import Branch

Context = grpc.aio.ServicerContext[Any, Any]
_STATES = {
    SeqState.WAITING: kv_cache_pb2.REQUEST_STATE_WAITING,
    SeqState.RUNNING: kv_cache_pb2.REQUEST_STATE_RUNNING,
    SeqState.PREEMPTED: kv_cache_pb2.REQUEST_STATE_PREEMPTED,
}


class KvCacheService(kv_cache_pb2_grpc.KvCacheServiceServicer):
    """Views for operators, and the flush of the prefix cache. clock: the engine's."""

    def __init__(self, engine: Engine, limits: Limits, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._limits = limits
        self._clock = clock

    async def GetKvCacheStats(
        self, request: kv_cache_pb2.GetKvCacheStatsRequest, context: Context
    ) -> kv_cache_pb2.GetKvCacheStatsResponse:
        return await self._engine.ask(lambda core: self._stats(core, request.include_requests))

    async def GetPoolMap(
        self, request: kv_cache_pb2.GetPoolMapRequest, context: Context
    ) -> kv_cache_pb2.GetPoolMapResponse:
        pool, stats = await self._engine.ask(lambda core: (core.pool_map(), core.stats()))
        return kv_cache_pb2.GetPoolMapResponse(
            block_size=stats.block_size,
            num_blocks=stats.num_blocks,
            state=pool.state.tobytes(),
            ref_count=arrays.encode(pool.ref_count),
            fill=arrays.encode(pool.fill),
            cached=pool.cached.tobytes(),
        )

    async def GetSequenceBlocks(
        self, request: kv_cache_pb2.GetSequenceBlocksRequest, context: Context
    ) -> kv_cache_pb2.GetSequenceBlocksResponse:
        request_id = check_sequence_blocks(request, self._limits)
        return await self._engine.ask(lambda core: self._blocks(core, request_id, _index(request)))

    async def ExplainRequest(
        self, request: kv_cache_pb2.ExplainRequestRequest, context: Context
    ) -> kv_cache_pb2.ExplainRequestResponse:
        request_id = check_explain_request(request, self._limits)
        return await self._engine.ask(lambda core: self._explain(core, request_id, _index(request)))

    async def FlushPrefixCache(
        self, request: kv_cache_pb2.FlushPrefixCacheRequest, context: Context
    ) -> kv_cache_pb2.FlushPrefixCacheResponse:
        namespace = check_flush(request, self._limits)
        forgotten = await self._engine.flush_prefix_cache(namespace)
        return kv_cache_pb2.FlushPrefixCacheResponse(blocks_forgotten=forgotten)

    async def WatchKvEvents(
        self, request: kv_cache_pb2.WatchKvEventsRequest, context: Context
    ) -> AsyncIterator[kv_cache_pb2.WatchKvEventsResponse]:
        events = self._engine.kv_events
        events.enter()
        try:
            after = request.after if request.HasField("after") else None
            number = after if request.stream_id == events.stream_id else None
            while True:
                changed = events.changed
                found = events.after(number) if number is not None else None
                if found is None:
                    snapshot = await self._engine.ask(events.snapshot)
                    for message in snapshot_messages(snapshot, events.stream_id):
                        yield message
                    number = snapshot.number
                elif found:
                    yield kv_cache_pb2.WatchKvEventsResponse(events=found, stream_id=events.stream_id)
                    number = found[-1].number
                else:
                    await changed.wait()
        finally:
            events.leave(self._clock())

    def _stats(self, core: Scheduler, include_requests: bool) -> kv_cache_pb2.GetKvCacheStatsResponse:
        stats, worker = core.stats(), self._engine.worker
        counters = stats.counters
        return kv_cache_pb2.GetKvCacheStatsResponse(
            block_size=stats.block_size,
            bytes_per_block=worker.bytes_per_block if worker is not None else 0,
            num_blocks=stats.num_blocks,
            free_blocks=stats.blocks_free,
            evictable_blocks=stats.blocks_evictable,
            active_blocks=stats.blocks_active,
            fenced_blocks=stats.blocks_fenced,
            shared_blocks=stats.blocks_shared,
            block_refs=stats.block_refs,
            slots_allocated=stats.slots_allocated,
            slots_filled=stats.slots_filled,
            prefix_index_entries=stats.prefix_entries,
            prefix_lookup_tokens=counters.prefix_lookup_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            evicted_blocks=counters.blocks_evicted,
            preemptions=counters.preemptions,
            running_requests=stats.running,
            waiting_requests=stats.waiting,
            worker_ready=self._engine.ready,
            worker_epoch=epoch_text(worker.worker_epoch) if worker is not None else "",
            steps=counters.steps_prefill + counters.steps_decode + counters.steps_mixed,
            generated_tokens=counters.generated_tokens,
            computed_prompt_tokens=counters.prompt_tokens_computed,
            requests=self._summaries(core) if include_requests else (),
        )

    def _summaries(self, core: Scheduler) -> list[kv_cache_pb2.RequestSummary]:
        return [self._summary(view) for view in core.sequences()]

    def _summary(self, view: SequenceView) -> kv_cache_pb2.RequestSummary:
        branch = self._engine.find_sequence(view.seq_id)
        return kv_cache_pb2.RequestSummary(
            request_id=branch.record.request_id if branch is not None else "",
            index=branch.index if branch is not None else 0,
            state=_STATES[view.state],
            prompt_tokens=view.prompt_len,
            cached_prompt_tokens=view.cached,
            computed_tokens=view.computed,
            output_tokens=view.output_len,
            blocks=view.num_blocks,
            host_blocks=view.host_blocks,
            preemptions=view.preemptions,
            priority=view.priority,
            age_seconds=max(0.0, self._clock() - view.arrival),
        )

    def _id_of(self, seq_id: SeqId) -> str:
        branch = self._engine.find_sequence(seq_id)
        return branch.record.request_id if branch is not None else ""

    def _explain(
        self, core: Scheduler, request_id: str, index: int | None
    ) -> kv_cache_pb2.ExplainRequestResponse:
        branch = self._live(request_id, index)
        found = self.explanation(core, branch.seq_id)
        if found is None:
            raise NotFound(f"index: sequence {branch.index} of {request_id!r} has ended", field="index")
        return found

    def explanation(self, core: Scheduler, seq_id: SeqId) -> kv_cache_pb2.ExplainRequestResponse | None:
        """Why a sequence waits or what it was served; None when it is not live. To be asked of the engine."""
        found = core.explain(seq_id, self._clock())
        return explain_response(found, self._summary(found.view), self._id_of) if found is not None else None

    def _live(self, request_id: str, index: int | None) -> Branch:
        """A sequence of a live request, the first that lives for None. Raises NotFound."""
        record = self._engine.find(request_id)
        if record is None:
            raise NotFound(f"request_id: no live request {request_id!r}", field="request_id")
        if index is None:
            return record.first_running
        if index >= len(record.branches):
            count = len(record.branches)
            raise NotFound(f"index: {index}, request {request_id!r} has {count} sequences", field="index")
        return record.branches[index]

    def _blocks(
        self, core: Scheduler, request_id: str, index: int | None
    ) -> kv_cache_pb2.GetSequenceBlocksResponse:
        branch = self._live(request_id, index)
        response = kv_cache_pb2.GetSequenceBlocksResponse(request_id=request_id, index=branch.index)
        for block_id, ref_count, fill, hash_prefix in core.sequence_blocks(branch.seq_id):
            response.blocks.add(
                block_id=block_id, ref_count=ref_count, fill=fill, hash_prefix=hash_prefix, tier=DEVICE_TIER
            )
            response.num_tokens += fill
        return response


def _index(
    request: kv_cache_pb2.GetSequenceBlocksRequest | kv_cache_pb2.ExplainRequestRequest,
) -> int | None:
    return request.index if request.HasField("index") else None

"""The methods of octavo.v1.InferenceService.

Owns the life of a call: submit, forward events, clean up whatever way it ends; knows neither the core nor
texts. Invariant: when a call is over, for whatever reason, none of its requests lives on.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import grpc.aio

from octavo.interceptors import REQUEST_ID_METADATA
from octavo.v1 import inference_pb2, inference_pb2_grpc
from scheduler_svc import answers
from scheduler_svc.batch_reader import BatchReader
from scheduler_svc.engine import Engine
from scheduler_svc.intake import Intake
from scheduler_svc.limits import check_abort, check_detokenize, check_tokenize
from scheduler_svc.streams import BacklogLimits, Outbox, Pending
from scheduler_svc.text import TextModel

Context = grpc.aio.ServicerContext[Any, Any]
_NO_BACKLOG_BOUND = BacklogLimits(tokens=1 << 31, characters=1 << 31, stall_seconds=float("inf"))
_PRINTABLE_ASCII = "".join(map(chr, range(32, 127)))


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """Generation and tokenisation. clock: the engine's."""

    def __init__(
        self,
        engine: Engine,
        intake: Intake,
        text: TextModel,
        backlog: BacklogLimits,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._intake = intake
        self._text = text
        self._backlog = backlog
        self._clock = clock

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:
        async with self._stream(context, self._backlog) as outbox:
            record = await self._intake.take(request, outbox)
            await self._engine.let_plans_leave()
            await context.send_initial_metadata(((REQUEST_ID_METADATA, metadata_text(record.request_id)),))
            running = len(record.branches)
            while running:
                for pending in await outbox.next():
                    for response in answers.single(pending):
                        await context.write(response)
                    if pending.error is not None:
                        raise pending.error
                    running -= pending.finished is not None

    async def GenerateOnce(
        self, request: inference_pb2.GenerateOnceRequest, context: Context
    ) -> inference_pb2.GenerateOnceResponse:
        async with self._stream(context, _NO_BACKLOG_BOUND) as outbox:
            record = await self._intake.take(request.request, outbox)
            sequences = [Pending(record.request_id, branch.index) for branch in record.branches]
            while any(sequence.finished is None for sequence in sequences):
                for pending in await outbox.next():
                    sequences[pending.index].add(pending)
                    if pending.error is not None:
                        raise pending.error
        return answers.whole(record.request_id, sequences)

    async def GenerateBatch(
        self, request_iterator: AsyncIterator[inference_pb2.GenerateBatchRequest], context: Context
    ) -> None:
        async with self._stream(context, self._backlog) as outbox:
            batch = BatchReader(self._engine, self._intake, outbox, self._clock)
            reader = asyncio.create_task(batch.read(request_iterator))
            try:
                while not (reader.done() and not outbox.live and outbox.is_empty):
                    for message in answers.batches(await outbox.next()):
                        await context.write(message)
                await reader
            finally:
                reader.cancel()

    async def Abort(
        self, request: inference_pb2.AbortRequest, context: Context
    ) -> inference_pb2.AbortResponse:
        ids = check_abort(request, self._intake.limits)
        return inference_pb2.AbortResponse(aborted_request_ids=await self._engine.abort(ids))

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        ids = await self._intake.encode(check_tokenize(request, self._intake.limits))
        return inference_pb2.TokenizeResponse(token_ids=ids.tolist())

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Context
    ) -> inference_pb2.DetokenizeResponse:
        ids, skip_special = check_detokenize(request, self._intake.limits, self._intake.facts())
        text = await asyncio.to_thread(self._text.decode, ids.tolist(), skip_special)
        return inference_pb2.DetokenizeResponse(text=text)

    async def GetModelInfo(
        self, request: inference_pb2.GetModelInfoRequest, context: Context
    ) -> inference_pb2.GetModelInfoResponse:
        facts, worker = self._intake.facts(), self._engine.worker
        assert worker is not None
        return inference_pb2.GetModelInfoResponse(
            model_id=worker.model_id,
            model_fingerprint=worker.model_fingerprint,
            max_model_len=facts.max_model_len,
            vocab_size=facts.vocab_size,
            eos_token_ids=sorted(self._text.eos_token_ids | set(worker.eos_token_ids)),
            has_chat_template=self._text.has_chat_template,
            kv_dtype=worker.kv_dtype,
            block_size=worker.block_size,
            default_sampling=self._intake.default_sampling,
        )

    @asynccontextmanager
    async def _stream(self, context: Context, backlog: BacklogLimits) -> AsyncIterator[Outbox]:
        """An outbox for one call. A call that breaks the backlog rule is woken even out of a write, and
        fails so.
        """
        outbox, task = Outbox(backlog), asyncio.current_task()
        assert task is not None
        outbox.on_failure = partial(_cancel, task)
        self._engine.open(outbox)
        outcome = "cancelled"
        try:
            yield outbox
        except asyncio.CancelledError:
            if outbox.failure is None or context.cancelled():
                remaining = context.time_remaining()
                outcome = "deadline" if remaining is not None and remaining <= 0 else "cancelled"
                raise
            outcome = "stream_backlog"
            task.uncancel()
            raise outbox.failure from None
        finally:
            outbox.on_failure = lambda: None
            self._engine.close(outbox, outcome)


def metadata_text(request_id: str) -> str:
    """A printable id as gRPC metadata takes it: ASCII as it is, the rest percent-encoded UTF-8."""
    return quote(request_id, safe=_PRINTABLE_ASCII)


def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()

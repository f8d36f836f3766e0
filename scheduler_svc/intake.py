"""From a GenerateRequest to a live request: limits, tokens, queue.

Owns the order of the checks and the drawn values (ids, seeds); knows neither the core's decisions nor the
answer's way back. Invariant: nothing is tokenised before every bound on the message has been checked, and
nothing is queued before the prompt's.
"""

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from octavo.errors import FailedPrecondition, OctavoError, Unavailable
from octavo.v1 import inference_pb2
from scheduler_svc.core.plan import NewRequest, SamplingParams, SeqId
from scheduler_svc.engine import Engine
from scheduler_svc.grammar import Vocabulary, grammar_of
from scheduler_svc.grammar_holds import GrammarHolds
from scheduler_svc.limits import (
    ChatPrompt,
    CheckedRequest,
    Limits,
    ModelFacts,
    Prompt,
    TextPrompt,
    TokenPrompt,
    check_generate,
    check_prompt,
    fill_in,
)
from scheduler_svc.logprob_writer import LogprobWriter
from scheduler_svc.metrics import ShellMetrics
from scheduler_svc.requests import Record, queue_timeout
from scheduler_svc.streams import Outbox
from scheduler_svc.text import TextEmitter, TextModel

if TYPE_CHECKING:
    from scheduler_svc.tracing import RequestTrace

T = TypeVar("T")
_INLINE_CHARACTERS = 2000
"""A longer text is tokenised in a thread, so that it never holds the event loop."""
_INLINE_TOKENS = 8192
"""More token ids are checked in a thread, for the same reason."""


class Intake:
    """Takes requests in for the engine. clock: the engine's. grammars: held at its worker. sampling: the
    operator's own defaults.

    begin_trace: makes the span of a request that arrives now; None: nothing is traced.
    """

    def __init__(
        self,
        engine: Engine,
        text: TextModel,
        limits: Limits,
        metrics: ShellMetrics,
        clock: Callable[[], float],
        grammars: GrammarHolds,
        sampling: inference_pb2.SamplingOptions | None = None,
        begin_trace: "Callable[[float], RequestTrace] | None" = None,
    ) -> None:
        self._engine = engine
        self._text = text
        self._metrics = metrics
        self._clock = clock
        self._grammars = grammars
        self._begin_trace = begin_trace
        self._next_seq_id = 1
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="text")
        self.limits = limits
        self.default_sampling = sampling or inference_pb2.SamplingOptions()
        self.draining = False
        """Set on the way out: new requests are refused with DRAINING."""

    def facts(self) -> ModelFacts:
        """What the checks need of the model. Raises Unavailable (WORKER_LOST) before the first worker."""
        worker = self._engine.worker
        if worker is None:
            raise Unavailable("no worker has connected yet", reason="WORKER_LOST", retry_after=1.0)
        return ModelFacts(max_model_len=worker.max_model_len, vocab_size=worker.vocab_size)

    async def take(self, request: inference_pb2.GenerateRequest, outbox: Outbox) -> Record:
        """A live request whose events go to the outbox. Raises leaves of the error tree, and counts them."""
        arrival = self._clock()
        trace = None if self._begin_trace is None else self._begin_trace(arrival)
        try:
            return await self._take(request, outbox, arrival, trace)
        except OctavoError as error:
            self._metrics.rejected(error.reason)
            if trace is not None:
                trace.refused(error, self._clock())
            raise
        except asyncio.CancelledError:
            if trace is not None:
                trace.cut(self._clock())
            raise

    async def _take(
        self,
        request: inference_pb2.GenerateRequest,
        outbox: Outbox,
        arrival: float,
        trace: "RequestTrace | None",
    ) -> Record:
        if self.draining:
            raise Unavailable("the service is shutting down", reason="DRAINING", retry_after=1.0)
        facts = self.facts()
        fill_in(request, self.default_sampling)
        if len(request.token_ids.ids) <= _INLINE_TOKENS:
            checked = check_generate(request, self.limits, facts)
        else:
            checked = await self._in_thread(check_generate, request, self.limits, facts)
        grammar = await self._grammar(checked)
        prompt = await self.encode(checked.prompt)
        check_prompt(prompt, checked, self.limits, facts)
        with ExitStack() as undo:
            if grammar:
                await self._hold(grammar, checked, arrival)
                undo.callback(self._grammars.release, grammar)
            record = self._record(checked, prompt, grammar, outbox, arrival, trace)
            self._engine.submit(record)
            undo.pop_all()
        return record

    def _record(
        self,
        checked: CheckedRequest,
        prompt: npt.NDArray[np.int32],
        grammar: str,
        outbox: Outbox,
        arrival: float,
        trace: "RequestTrace | None",
    ) -> Record:
        record = Record(
            request_id=checked.request_id or secrets.token_hex(8),
            request=self._new_request(checked, prompt, grammar),
            outbox=outbox,
            emitters=[self._emitter(checked) for _ in range(checked.n)],
            include_stop_token=checked.include_stop,
            tokens_only=checked.token_ids_only,
            arrival=arrival,
            queue_deadline=None if checked.queue_timeout is None else arrival + checked.queue_timeout,
            logprobs=self._logprobs(checked, len(prompt)),
            trace=trace,
        )
        if grammar:
            record.when_over = partial(self._grammars.release, grammar)
        if trace is not None:
            assert self._engine.worker is not None
            trace.describe(checked, record, self._engine.worker.model_id)
        return record

    async def encode(self, prompt: Prompt) -> npt.NDArray[np.int32]:
        """[T] the prompt's token ids. Long texts and chats are encoded in a thread."""
        if isinstance(prompt, TokenPrompt):
            return prompt.ids
        if isinstance(prompt, TextPrompt) and len(prompt.text) <= _INLINE_CHARACTERS:
            return self._text.encode(prompt.text, prompt.add_special_tokens)
        return await self._in_thread(self._encode, prompt)

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _encode(self, prompt: TextPrompt | ChatPrompt) -> npt.NDArray[np.int32]:
        if isinstance(prompt, TextPrompt):
            return self._text.encode(prompt.text, prompt.add_special_tokens)
        return self._text.encode_chat(prompt)

    def _emitter(self, checked: CheckedRequest) -> TextEmitter | None:
        """One for each sequence, unless nobody wants its text."""
        if checked.token_ids_only and not checked.stop:
            return None
        return self._text.new_emitter(
            checked.stop,
            checked.include_stop,
            checked.skip_special_tokens,
            min_tokens=checked.min_tokens,
            continues=not isinstance(checked.prompt, ChatPrompt),
        )

    async def _grammar(self, checked: CheckedRequest) -> str:
        """What the output has to match, empty for anything. A grammar is checked in a thread."""
        if checked.response_format is None:
            return ""
        kind, text = checked.response_format
        worker = self._engine.worker
        if worker is None or not worker.eos_token_ids:
            raise FailedPrecondition(
                f"response_format.{kind}: the model has no EOS token to end an answer with",
                reason="NO_EOS_TOKEN",
                field=f"response_format.{kind}",
            )
        size = max(self._text.vocab_size, worker.vocab_size)
        return await self._in_thread(grammar_of, kind, text, Vocabulary(size, self._text.special_tokens))

    async def _hold(self, grammar: str, checked: CheckedRequest, arrival: float) -> None:
        """Waits for the worker to compile a grammar, beside the steps of others, as part of the queueing."""
        assert checked.response_format is not None
        field = f"response_format.{checked.response_format[0]}"
        left = None if checked.queue_timeout is None else arrival + checked.queue_timeout - self._clock()
        try:
            async with asyncio.timeout(left):
                await self._grammars.take(grammar, field)
        except TimeoutError:
            raise queue_timeout() from None

    def _logprobs(self, checked: CheckedRequest, prompt_len: int) -> LogprobWriter | None:
        if checked.logprobs is None and checked.prompt_logprobs is None:
            return None
        return LogprobWriter(checked.logprobs, checked.prompt_logprobs, prompt_len, self._text.token_bytes)

    def _new_request(
        self, checked: CheckedRequest, prompt: npt.NDArray[np.int32], grammar: str
    ) -> NewRequest:
        worker = self._engine.worker
        assert worker is not None
        eos = self._text.eos_token_ids | frozenset(worker.eos_token_ids)
        ending = checked.ending_ids(eos)
        suppressed = sorted(token for token in ending if token < worker.vocab_size)
        seq_id, self._next_seq_id = SeqId(self._next_seq_id), self._next_seq_id + checked.n
        return NewRequest(
            seq_id=seq_id,
            n=checked.n,
            prompt=prompt,
            max_tokens=checked.max_tokens,
            min_tokens=checked.min_tokens,
            stop_token_ids=ending,
            sampling=SamplingParams(
                temperature=checked.temperature,
                top_p=checked.top_p,
                top_k=checked.top_k,
                min_p=checked.min_p,
                seed=secrets.randbits(64) if checked.seed is None else checked.seed,
                presence_penalty=checked.presence_penalty,
                frequency_penalty=checked.frequency_penalty,
                repetition_penalty=checked.repetition_penalty,
                logit_bias=checked.logit_bias,
                suppressed_ids=tuple(suppressed) if checked.min_tokens else (),
                min_tokens=checked.min_tokens,
                logprobs=checked.logprobs,
                prompt_logprobs=checked.prompt_logprobs,
                grammar=grammar,
            ),
            priority=checked.priority,
            namespace=checked.cache_salt,
            use_prefix_cache=checked.use_prefix_cache and checked.prompt_logprobs is None,
        )

    def close(self) -> None:
        """Ends the threads and the chat renderer."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._text.close()

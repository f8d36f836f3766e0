"""From the core's tokens and notices to what clients are told.

Owns texts, usage and ends of sequences; knows neither plans nor gRPC. Invariant: a request is told
`accepted`, then for each of its sequences deltas and one end in this order, each token once, and nothing
after an end.
"""

import logging
from dataclasses import dataclass

from octavo.errors import FailedPrecondition, InvalidArgument, OctavoError
from octavo.v1 import inference_pb2
from scheduler_svc.core.plan import (
    Admitted,
    Finished,
    FinishReason,
    Notices,
    Refusal,
    RefusalReason,
    TokenEvents,
)
from scheduler_svc.logprobs import StepLogprobs, TokenValues
from scheduler_svc.metrics import ShellMetrics
from scheduler_svc.requests import Branch, Record, Requests
from scheduler_svc.streams import Outbox

_log = logging.getLogger(__name__)
_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORTED: inference_pb2.FINISH_REASON_ABORTED,
    FinishReason.KV_POOL: inference_pb2.FINISH_REASON_KV_POOL,
    FinishReason.ERROR: inference_pb2.FINISH_REASON_ERROR,
}


@dataclass(frozen=True, slots=True)
class Bundle:
    """What one input of the core brought: the tokens of a step, if it was a result, and the notices after
    it; the log-probabilities that came with a result.
    """

    events: TokenEvents | None
    notices: Notices
    logprobs: StepLogprobs | None = None


class Delivery:
    """Writes outboxes. `touched` collects those to flush; `stops` the sequences whose stop string matched."""

    def __init__(self, requests: Requests, metrics: ShellMetrics) -> None:
        self._requests = requests
        self._metrics = metrics
        self._gaps: list[float] = []
        self.touched: dict[int, Outbox] = {}
        self.stops: list[Branch] = []

    def deliver(self, bundle: Bundle, now: float) -> None:
        """Takes over one bundle, in the order in which the core made them. now: seconds of the engine's
        clock.
        """
        for admitted in bundle.notices.admitted:
            self._accept(admitted, now)
        finished = bundle.notices.finished
        if bundle.logprobs is not None:
            self._prompts(bundle.logprobs)
        if bundle.events is not None and bundle.events.seq_ids.size:
            ends: dict[int, Finished] = {end.seq_id: end for end in finished}
            self._tokens(bundle.events, ends, bundle.logprobs.samples if bundle.logprobs else {}, now)
        for end in finished:
            branch = self._requests.by_seq(end.seq_id)
            if branch is not None:
                self._finish(branch, end, now)

    def fail(self, record: Record, error: OctavoError, outcome: str) -> None:
        """Ends a request's stream with an error. The record stays until the core says that its sequences are
        over.
        """
        if not record.ended:
            self.leave(record, outcome)
            record.outbox.of(record.request_id).error = error
            self._touch(record)

    def leave(self, record: Record, outcome: str) -> None:
        """Nothing more is told of any sequence of a request that is not ended yet."""
        record.ended, record.outcome = True, outcome
        for branch in record.branches:
            branch.ended = True

    def refuse(self, record: Record, refusal: Refusal, now: float) -> None:
        """The core did not take the request."""
        self._metrics.rejected(refusal.reason.value)
        self.leave(record, "")
        error = _refusal_error(refusal)
        record.outbox.of(record.request_id).error = error
        if record.trace is not None:
            record.trace.refused(error, now)
        self._touch(record)
        self._requests.remove(record)

    def _touch(self, record: Record) -> None:
        self.touched[id(record.outbox)] = record.outbox

    def _accept(self, admitted: Admitted, now: float) -> None:
        branch = self._requests.by_seq(admitted.seq_id)
        if branch is None or not self._requests.admitted(branch.record, now):
            return
        record, cached = branch.record, admitted.cached_prompt_tokens
        self._metrics.queue_wait_seconds.observe(now - record.arrival)
        self._metrics.prompt_tokens["cached"] += cached
        self._metrics.prompt_tokens["computed"] += record.prompt_len - cached
        if record.ended:
            return
        record.accepted = inference_pb2.Accepted(
            request_id=record.request_id, prompt_tokens=record.prompt_len, cached_prompt_tokens=cached
        )
        if record.logprobs is None or record.logprobs.prompt_is_whole:
            self._tell_accepted(record)

    def _prompts(self, logprobs: StepLogprobs) -> None:
        """Takes in parts of prompts; a request whose prompt is whole now is accepted."""
        for part in logprobs.prompts:
            branch = self._requests.by_seq(part.seq_id)
            if branch is None or branch.ended or branch.record.accepted is None:
                continue
            writer = branch.record.logprobs
            assert writer is not None
            writer.add_prompt(part)
            if writer.prompt_is_whole:
                self._tell_accepted(branch.record)

    def _tell_accepted(self, record: Record) -> None:
        told, record.accepted = record.accepted, None
        if told is None:
            return
        if record.logprobs is not None:
            told.prompt_logprobs.extend(record.logprobs.take_prompt())
        record.outbox.of(record.request_id).accepted = told
        self._touch(record)

    def _tokens(
        self,
        events: TokenEvents,
        ends: dict[int, Finished],
        logprobs: dict[int, TokenValues],
        now: float,
    ) -> None:
        self._gaps.clear()
        for seq_id, token_id, output_len in zip(
            events.seq_ids.tolist(), events.token_ids.tolist(), events.output_lens.tolist(), strict=True
        ):
            branch = self._requests.by_seq(seq_id)
            if branch is None or branch.ended or branch.stopped:
                self._metrics.undelivered_tokens += 1
                continue
            record = branch.record
            branch.output_len = output_len
            self._time(branch, now)
            text = self._text(branch, token_id, ends.get(seq_id)) if branch.emitter else ""
            record.outbox.put_delta(record.request_id, (token_id,), text, branch.index)
            if record.logprobs is not None and record.logprobs.tells_output:
                position = record.logprobs.position(logprobs[seq_id])
                record.outbox.put_logprobs(record.request_id, position, branch.index)
            self._touch(record)
            self._metrics.delivered_tokens += 1
        self._metrics.inter_token_latency_seconds.observe_many(self._gaps)

    def _time(self, branch: Branch, now: float) -> None:
        """The time to the first token is the first sequence's: the prompt was computed once."""
        if branch.last_token_at is not None:
            self._gaps.append(now - branch.last_token_at)
        elif branch.index == 0:
            branch.record.first_token_at = now
            self._metrics.time_to_first_token_seconds.observe(now - branch.record.arrival)
        branch.last_token_at = now

    def _text(self, branch: Branch, token_id: int, end: Finished | None) -> str:
        """The text that a token sets free. A stop token has none, unless asked for."""
        assert branch.emitter is not None
        record = branch.record
        last = end is not None and end.matched_token == token_id and end.output_len == branch.output_len
        if last and not record.include_stop_token:
            return ""
        emitted = branch.emitter.push((token_id,))
        if emitted.stopped is not None:
            branch.stopped = True
            self.stops.append(branch)
        return "" if record.tokens_only else emitted.text

    def _finish(self, branch: Branch, end: Finished, now: float) -> None:
        record = branch.record
        if not branch.ended:
            branch.ended = True
            record.outcome = self._tell_end(branch, end)
            self._touch(record)
        if end.error:
            _log.warning("request failed: %s", end.error, extra={"request_id": record.request_id})
        elif _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "sequence %d ended: %s after %d tokens", branch.index, record.outcome, end.output_len,
                extra={"request_id": record.request_id},
            )  # fmt: skip
        if record.trace is not None:
            record.trace.sequence_ended(branch.index, record.outcome, end)
        if self._requests.sequence_over(branch):
            record.ended = True
            if record.trace is not None:
                record.trace.ended(record, now)
            self._metrics.outcomes[record.outcome] += 1
            self._metrics.request_seconds.observe(now - record.arrival)

    def _tell_end(self, branch: Branch, end: Finished) -> str:
        """Writes the held text and the finished event. Returns the outcome's label."""
        emitter, record = branch.emitter, branch.record
        self._tell_accepted(record)
        if emitter is not None:
            tail = emitter.finish()
            if tail and not record.tokens_only:
                record.outbox.put_delta(record.request_id, (), tail, branch.index)
        match = emitter.stopped if emitter is not None else None
        reason = end.reason if match is None else FinishReason.STOP
        told = inference_pb2.Finished(
            index=branch.index,
            reason=_REASONS[reason],
            usage=inference_pb2.Usage(
                prompt_tokens=end.prompt_len,
                cached_prompt_tokens=end.cached_prompt_tokens,
                completion_tokens=end.output_len if match is None else match.output_len,
                preemptions=end.preemptions,
                shared_blocks_saved=end.blocks_saved,
            ),
            error_reason=end.error,
        )
        if match is not None:
            told.stop = match.stop
        elif end.matched_token is not None:
            told.stop_token_id = end.matched_token
        record.outbox.of(record.request_id, branch.index).finished = told
        return reason.value


def _refusal_error(refusal: Refusal) -> OctavoError:
    if refusal.reason is RefusalReason.EXCEEDS_KV_POOL:
        return FailedPrecondition(refusal.message, reason=refusal.reason.value, field=refusal.field)
    return InvalidArgument(refusal.message, reason=refusal.reason.value, field=refusal.field)

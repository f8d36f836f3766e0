"""Taking in the worker's answers: tokens to their sequences, failures to those they concern.

Owns what an answer means; does not know how plans are made. Invariant: a token reaches a sequence only if the
row's stay in which it was sampled goes on, and a fault costs only the rows that it is about and those that
read from them.
"""

import numpy as np

from scheduler_svc.core.admission import final_len
from scheduler_svc.core.in_flight import Step, Tenure
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.plan import (
    FinishReason,
    Int32Array,
    Int64Array,
    SeqId,
    StepResult,
    TokenEvents,
)
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.session import Session
from scheduler_svc.core.stats import Counters
from scheduler_svc.core.swapping import Swapping

NO_TOKEN = "the worker's answer holds no token for the row"


class ResultTaker:
    """Applies answers of `lifecycle.session` in step order."""

    def __init__(self, lifecycle: Lifecycle, counters: Counters, swapping: Swapping) -> None:
        self._lifecycle = lifecycle
        self._swapping = swapping
        self._counters = counters

    def take(self, result: StepResult) -> TokenEvents:
        """The tokens that became deliverable: none for an answer that nobody waits for, several steps' if one
        was early.
        """
        session = self._lifecycle.session
        if session is None or not session.in_flight.answer(result):
            self._counters.odd_results += 1
            return _no_events()
        events = []
        while (ready := session.in_flight.answered()) is not None:
            step, answer = ready
            if answer.failure is not None:
                self._fail_step(session, step, answer.failure)
                break
            events.append(self._take_step(session, step, answer))
            self._swapping.answered(session, step, answer)
            session.in_flight.pop()
            session.applied = step.step_id
        return events[0] if len(events) == 1 else _joined(events)

    def _take_step(self, session: Session, step: Step, answer: StepResult) -> TokenEvents:
        tokens, rows = answer.token_ids, step.sample_rows
        if answer.failed_rows or len(tokens) != len(rows) or np.count_nonzero(tokens < 0):
            tokens = self._sort_out_failures(session, step, answer)
        if session.rows.num_releases != step.num_releases:
            going_on = session.rows.tenure[rows] == step.sample_tenures
            gone = np.flatnonzero(~going_on & (tokens >= 0)).tolist()
            late = [event for i in gone if (event := self._deliver_late(session, step, i, int(tokens[i])))]
            self._counters.overshoot_tokens += len(gone) - len(late)
            events = self._deliver(session, step, rows[going_on], tokens[going_on])
            return _joined([events, _events_of(late)]) if late else events
        return self._deliver(session, step, rows, tokens)

    def _deliver_late(
        self, session: Session, step: Step, index: int, token: int
    ) -> tuple[SeqId, int, int] | None:
        """The token of a stay that has ended: the sequence's, if it was swapped out since; else None."""
        stay = (int(step.sample_rows[index]), int(step.sample_tenures[index]))
        seq = self._swapped_out_of(session, stay)
        if seq is None:
            return None
        seq.tokens = np.append(seq.tokens, np.int32(token))
        length = len(seq.tokens)
        self._counters.generated_tokens += 1
        if token in seq.request.stop_token_ids and length > seq.prompt_len + seq.request.min_tokens:
            self._lifecycle.end(seq, FinishReason.STOP, matched_token=token)
        elif length >= final_len(seq.request, session.capacity):
            self._lifecycle.end(seq, FinishReason.LENGTH)
        return seq.seq_id, token, length - seq.prompt_len

    def _swapped_out_of(self, session: Session, stay: Tenure) -> Sequence | None:
        """The waiting sequence that was swapped out of this stay, while steps of the stay are in flight."""
        seq_id = session.host.departed.get(stay) if session.host is not None else None
        return None if seq_id is None else self._lifecycle.live.get(seq_id)

    def _deliver(self, session: Session, step: Step, rows: Int64Array, tokens: Int32Array) -> TokenEvents:
        """One token for each of these running rows; publishes full blocks, ends what is to end."""
        table = session.rows
        lengths = table.append_tokens(rows, tokens)
        if len(step.full_rows):
            self._publish(session, step, rows)
        events = TokenEvents(table.seq_id[rows], tokens, lengths - table.prompt_len[rows])
        self._counters.generated_tokens += len(tokens)
        stopped = table.stopped(rows, tokens, lengths)
        too_long = lengths > table.last[rows]
        if stopped or np.count_nonzero(too_long):
            for i in sorted({*stopped, *too_long.nonzero()[0].tolist()}):
                seq = table.sequence[rows[i]]
                assert seq is not None
                if i in stopped:
                    self._lifecycle.end(seq, FinishReason.STOP, matched_token=int(tokens[i]))
                else:
                    self._lifecycle.end(seq, FinishReason.LENGTH)
        return events

    def _publish(self, session: Session, step: Step, rows: Int64Array) -> None:
        """The blocks that decodes of this step filled; their newest token was known before the step ran."""
        full, lens = step.full_rows, step.full_lens
        wanted = session.rows.caches[full]
        if session.rows.num_releases != step.num_releases:
            wanted &= np.isin(full, rows)  # the others' stays have ended
        if np.count_nonzero(wanted) < len(full):
            full, lens = full[wanted], lens[wanted]
        if len(full):
            session.manager.publish_generated(full, lens)

    def _sort_out_failures(self, session: Session, step: Step, answer: StepResult) -> Int32Array:
        """Ends the rows that failed or lack a token, sends back those that read from them; returns tokens
        [S].
        """
        tokens = np.full(len(step.sample_rows), -1, np.int32)
        given = answer.token_ids[: len(tokens)]
        tokens[: len(given)] = given
        failed: dict[Tenure, str] = {}
        for row, reason in answer.failed_rows:
            stay = step.tenure_of(row)
            if stay is None:
                self._counters.odd_rows += 1
            else:
                failed[stay] = reason
        for i in np.flatnonzero(tokens < 0).tolist():
            stay = (int(step.sample_rows[i]), int(step.sample_tenures[i]))
            if stay not in failed:
                self._counters.odd_rows += 1
                failed[stay] = NO_TOKEN
        self._counters.odd_rows += int(len(answer.token_ids) > len(tokens))
        self._fail(session, failed)
        return tokens

    def _fail(self, session: Session, failed: dict[Tenure, str]) -> None:
        tainted, chunks = session.in_flight.tainted_by(set(failed))
        for step, chunk in chunks:
            for blocks in chunk.published:
                session.manager.withdraw(blocks, step.step_id)
        for row, tenure in sorted(tainted):
            seq = session.rows.sequence[row]
            if seq is None or session.rows.tenure[row] != tenure:
                seq = self._swapped_out_of(session, (row, tenure))
            if seq is None:
                continue  # it had ended before
            self._distrust_copy(session, seq)
            if (row, tenure) in failed:
                self._counters.rows_failed += 1
                self._lifecycle.end(seq, FinishReason.ERROR, error=failed[row, tenure], zero=True)
            else:
                self._counters.rollbacks += 1
                if seq.row >= 0:
                    self._lifecycle.requeue(seq, zero=True)

    def _distrust_copy(self, session: Session, seq: Sequence) -> None:
        """What the host tier holds of it, if it does, is given up, and what it left on the device zeroed."""
        copy = session.copy_of(seq)
        if copy is not None and session.host is not None:
            session.host.discard(seq.seq_id)
            session.manager.distrust(copy.device)

    def _fail_step(self, session: Session, step: Step, reason: str) -> None:
        """Ends the step's sequences and voids the session: the worker takes no plan until a new one."""
        self._counters.steps_failed += 1
        for row, tenure in zip(step.rows.tolist(), step.tenures.tolist(), strict=True):
            seq = session.rows.sequence[row]
            if seq is not None and session.rows.tenure[row] == tenure:
                self._counters.rows_failed += 1
                self._lifecycle.end(seq, FinishReason.ERROR, error=reason)
        self._lifecycle.close_session()


def _no_events() -> TokenEvents:
    return TokenEvents(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))


def _events_of(tokens: list[tuple[SeqId, int, int]]) -> TokenEvents:
    """One event for each (sequence, token, output length)."""
    seq_ids, ids, output_lens = zip(*tokens, strict=True)
    return TokenEvents(np.array(seq_ids, np.int64), np.array(ids, np.int32), np.array(output_lens, np.int32))


def _joined(events: list[TokenEvents]) -> TokenEvents:
    if not events:
        return _no_events()
    return TokenEvents(
        np.concatenate([event.seq_ids for event in events]),
        np.concatenate([event.token_ids for event in events]),
        np.concatenate([event.output_lens for event in events]),
    )

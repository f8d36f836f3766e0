"""The live sequences: how each begins, waits again and ends.

Owns the live set, the queue and the notices; does not decide who runs. Invariant: a live sequence is either
in the queue or in a row, and one that ended is known to nobody here.
"""

import numpy as np

from scheduler_svc.core.kv_events import KvLog
from scheduler_svc.core.plan import Admitted, Finished, FinishReason, NewRequest, Notices, SeqId
from scheduler_svc.core.sequence import SeqState, Sequence
from scheduler_svc.core.session import Session
from scheduler_svc.core.waiting_queue import WaitingQueue


class Lifecycle:
    """`session` is None while there is no worker: then all live sequences wait."""

    def __init__(self) -> None:
        self.live: dict[SeqId, Sequence] = {}
        self.waiting = WaitingQueue()
        self.session: Session | None = None
        self.kv_log: KvLog | None = None  # of those who follow the prefix index
        self._arrivals = 0
        self._admitted: list[Admitted] = []
        self._finished: list[Finished] = []

    def add(self, request: NewRequest, now: float) -> Sequence:
        """A new live sequence at the end of its priority's queue. Raises ValueError if the id is live."""
        if request.seq_id in self.live:
            raise ValueError(f"seq_id {request.seq_id} is live")
        tokens = np.asarray(request.prompt, np.int32)
        seq = Sequence(request, self._arrivals, now, tokens)
        self._arrivals += 1
        self.live[request.seq_id] = seq
        self.waiting.push(seq)
        return seq

    def note_admitted(self, admitted: list[Admitted]) -> None:
        self._admitted += admitted

    def output_len(self, seq: Sequence) -> int:
        """Tokens delivered so far."""
        if self.session is not None and seq.row >= 0:
            return int(self.session.rows.known[seq.row]) - seq.prompt_len
        return len(seq.tokens) - seq.prompt_len

    def end(
        self,
        seq: Sequence,
        reason: FinishReason,
        *,
        output_len: int | None = None,
        matched_token: int | None = None,
        error: str = "",
        zero: bool = False,
    ) -> None:
        """The sequence's end, whatever it was doing; gives back its row and blocks.

        zero: what it wrote is not to be trusted.
        """
        if output_len is None:
            output_len = self.output_len(seq)
        if seq.row < 0:
            self.waiting.remove(seq)
        elif self.session is not None:
            blocks = self.session.release(seq.row)
            if zero:
                self.session.manager.zero_later(blocks)
        seq.state = SeqState.FINISHED
        del self.live[seq.seq_id]
        finished = Finished(
            seq.seq_id, reason, output_len, seq.prompt_len, seq.cached_prompt_tokens, seq.preemptions,
            matched_token, error,
        )  # fmt: skip
        self._finished.append(finished)

    def requeue(self, seq: Sequence, *, zero: bool = False) -> None:
        """A running sequence waits again with the tokens it has. zero: what it wrote is not to be trusted."""
        session = self.session
        assert session is not None
        seq.tokens = session.rows.tokens_of(seq.row)
        blocks = session.release(seq.row)
        if zero:
            session.manager.zero_later(blocks)
        seq.state = SeqState.PREEMPTED
        self.waiting.push(seq)

    def close_session(self) -> None:
        """Every running sequence waits again; all residency is void."""
        if self.session is not None:
            for seq in self.session.rows.running():
                self.requeue(seq)
            self.session = None
            if self.kv_log is not None:
                self.kv_log.cleared()

    def take_notices(self) -> Notices:
        notices = Notices(tuple(self._admitted), tuple(self._finished))
        self._admitted, self._finished = [], []
        return notices

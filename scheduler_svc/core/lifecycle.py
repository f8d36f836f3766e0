"""The live sequences: how each begins, waits again and ends.

Owns the live set, the queue and the notices; does not decide who runs. Invariant: a live sequence is in the
queue, in a row, or a follower of one that is, and one that ended is known to nobody here.
"""

import math

import numpy as np

from scheduler_svc.core.groups import leave, new_group
from scheduler_svc.core.kv_events import KvLog
from scheduler_svc.core.plan import Admitted, Finished, FinishReason, NewRequest, Notices, SeqId
from scheduler_svc.core.sequence import SeqState, Sequence
from scheduler_svc.core.session import Session
from scheduler_svc.core.waiting_queue import WaitingQueue, rank_of


class Lifecycle:
    """`session` is None while there is no worker: then all live sequences wait. priority_aging: seconds of
    waiting that weigh as much as one step of priority, 0: priorities are strict.
    """

    def __init__(self, priority_aging: float) -> None:
        if not 0 <= priority_aging < math.inf:
            raise ValueError(
                f"priority_aging must be a finite number of seconds, 0 or more: {priority_aging}"
            )
        self._priority_aging = priority_aging
        self.live: dict[SeqId, Sequence] = {}
        self.waiting = WaitingQueue()
        self.session: Session | None = None
        self.kv_log: KvLog | None = None  # of those who follow the prefix index
        self._arrivals = 0
        self._admitted: list[Admitted] = []
        self._finished: list[Finished] = []

    def add(self, request: NewRequest, now: float) -> Sequence:
        """The leader of the request's new live sequences, at the end of its priority's queue.

        Raises ValueError if one of their ids is live, or n is not positive.
        """
        if request.n < 1:
            raise ValueError(f"n is {request.n}")
        for seq_id in range(request.seq_id, request.seq_id + request.n):
            if seq_id in self.live:
                raise ValueError(f"seq_id {seq_id} is live")
        rank = rank_of(request.priority, now, self._priority_aging)
        leader = new_group(request, self._arrivals, now, np.asarray(request.prompt, np.int32), rank)
        self._arrivals += request.n
        for seq in (leader, *leader.followers):
            self.live[seq.seq_id] = seq
        self.waiting.push(leader)
        return leader

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

        zero: what it wrote is not to be trusted. If others waited for it to compute the prompt, one of them
        waits in its place.
        """
        if output_len is None:
            output_len = self.output_len(seq)
        if self.session is not None and seq.row >= 0:
            self.session.release(seq.row, zero=zero)
        elif seq.leader is None:
            self.waiting.remove(seq)
            if self.session is not None and self.session.host is not None:
                self.session.host.discard(seq.seq_id)
        heir = leave(seq)
        if heir is not None:
            self.waiting.push(heir)
        seq.state = SeqState.FINISHED
        del self.live[seq.seq_id]
        finished = Finished(
            seq.seq_id, reason, output_len, seq.prompt_len, seq.cached_prompt_tokens, seq.preemptions,
            matched_token, error, seq.blocks_saved,
        )  # fmt: skip
        self._finished.append(finished)

    def end_group(self, leader: Sequence, reason: FinishReason, error: str = "") -> None:
        """Ends a sequence and those that wait for it."""
        for seq in (*leader.followers, leader):
            self.end(seq, reason, error=error)

    def requeue(self, seq: Sequence, *, zero: bool = False) -> None:
        """A running sequence waits again with the tokens it has. zero: what it wrote is not to be trusted."""
        session = self.session
        assert session is not None
        seq.tokens = session.rows.tokens_of(seq.row)
        session.release(seq.row, zero=zero)
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

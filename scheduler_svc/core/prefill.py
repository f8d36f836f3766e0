"""Who gets the tokens of a step that the decodes leave over, and who is admitted.

Owns fairness among prefills and the admission rule; does not know plans' arrays. Invariant: a sequence is
admitted only when the pool has room for its whole context, beside what earlier admissions were promised.

The bounds, with B the token budget and P what the decodes of a step leave of it (B // 16 or more:
`row_limit`):
- a decode gets its token in every step that has blocks for it;
- the oldest prefill gets at least P / 2 tokens a step, so a prompt of n tokens ends its prefill at most
  2 n / P steps after it became the oldest, whatever arrives meanwhile;
- the other half goes to the shortest remainder first, the head of the queue included: however long the
  prompts under way are, a shorter one of at most P / 2 tokens is computed in the step that admits it;
- what one half leaves over goes to the other: no token of the budget is lost while somebody could use it.
Smaller priority numbers go first in all of this, and sequences are admitted in the order of the queue.
"""

from dataclasses import dataclass, field

import numpy as np

from scheduler_svc.core.admission import final_len
from scheduler_svc.core.ages import Ages
from scheduler_svc.core.batch_builder import Chunk
from scheduler_svc.core.groups import disband
from scheduler_svc.core.growth import promised_blocks, reserve_of
from scheduler_svc.core.host_tier import HostCopy
from scheduler_svc.core.match import Match
from scheduler_svc.core.plan import Admitted, SchedulerConfig, StepId
from scheduler_svc.core.sequence import SeqState, Sequence
from scheduler_svc.core.session import Blocked, Session
from scheduler_svc.core.stats import Counters
from scheduler_svc.core.swapping import Swapping
from scheduler_svc.core.waiting_queue import WaitingQueue


@dataclass(frozen=True, slots=True)
class Need:
    """Blocks that an admission asks for.

    context: of its whole context. hits: those of them found in the prefix index. idle_hits: hits that nobody
    holds, a block to copy from among them; they stop being available too. reserve: left for the growth of
    those that run and for further branches.
    """

    context: int
    hits: int
    idle_hits: int
    reserve: int

    @property
    def total(self) -> int:
        """To be compared with the available blocks."""
        return self.context - self.hits + self.idle_hits + self.reserve


def need_of(session: Session, config: SchedulerConfig, seq: Sequence, match: Match) -> Need:
    """What the admission of a waiting sequence needs with what is cached of it; no reserve while nobody runs.

    A block to copy from must stay while it is copied. Each further branch gets a block for its first token.
    """
    manager = session.manager
    idle = manager.pool.num_listed(match.used)
    reserve = reserve_of(session, config) + len(seq.followers) if session.rows.count else 0
    return Need(manager.blocks_for(len(seq.tokens)), len(match.blocks), idle, reserve)


def admission_of(
    session: Session, config: SchedulerConfig, seq: Sequence, step_id: StepId
) -> tuple[Match, Need]:
    """What is cached of a waiting sequence, as far as there is room to use it, and what its admission needs.

    step_id: the step being planned.
    """
    match = session.manager.match_prefix(seq, step_id)
    if session.copy_of(seq) is not None:
        match = match.whole_blocks()  # the rest comes from the host
    need = need_of(session, config, seq, match)
    if match.count and need.total > session.manager.pool.available - promised_blocks(session):
        match = match.whole_blocks()  # the block to copy from is one more that must stay
        need = need_of(session, config, seq, match)
    return match, need


@dataclass(slots=True)
class PrefillPass:
    """The prefill half of building one plan."""

    session: Session
    config: SchedulerConfig
    waiting: WaitingQueue
    counters: Counters
    ages: Ages
    swapping: Swapping
    step_id: StepId
    chunks: dict[int, Chunk] = field(default_factory=dict)  # by row
    admitted: list[Admitted] = field(default_factory=list)

    def run(self, budget: int, admit: bool) -> None:
        """Fills `chunks` with up to `budget` tokens; takes sequences out of the queue only if `admit`."""
        half = budget - budget // 2
        rest = budget - half + self._oldest_first(half)
        rest = self._shortest_first(rest, admit)
        self._oldest_first(rest)

    def _oldest_first(self, budget: int) -> int:
        """Returns what is left of the budget."""
        for seq in sorted(self.session.rows.prefilling.values(), key=lambda seq: seq.order):
            budget -= self._advance(seq, budget)
        return budget

    def _shortest_first(self, budget: int, admit: bool) -> int:
        """Returns what is left of the budget. The head of the queue counts with its whole context."""
        inside = sorted(self.session.rows.prefilling.values(), key=self._rank, reverse=True)
        while budget:
            head = self.waiting.head() if admit and self.session.rows.num_free else None
            if head is not None and not (inside and self._rank(inside[-1]) < self._rank(head)):
                admit = self._admit(head)
                if admit:
                    budget -= self._advance(head, budget)
            elif inside:
                budget -= self._advance(inside.pop(), budget)
            else:
                break
        return budget

    def _rank(self, seq: Sequence) -> tuple[int, int, int]:
        copy = self.session.copy_of(seq)
        held = 0 if copy is None else copy.computed
        done = int(self.session.rows.scheduled[seq.row]) if seq.row >= 0 else held
        return (seq.request.priority, len(seq.tokens) - done, seq.arrival)

    def _advance(self, seq: Sequence, budget: int) -> int:
        """Schedules up to `budget` more tokens of a running prefill, as blocks and chunk limit allow."""
        rows, manager, row = self.session.rows, self.session.manager, seq.row
        start = int(rows.scheduled[row])
        chunk = self.chunks.get(row)
        if self.config.max_prefill_chunk:
            already = chunk.end - chunk.start if chunk is not None else 0
            budget = min(budget, self.config.max_prefill_chunk - already)
        count = min(budget, len(seq.tokens) - start, manager.coverable(row))
        if count <= 0:
            return 0
        if chunk is None:
            chunk = Chunk(seq, row, int(rows.tenure[row]), start, start, np.empty(0, np.int32))
            self.chunks[row] = chunk
        chunk.end = start + count
        manager.cover(row, chunk.end, self.session.batch)
        published = manager.publish_scheduled(row, start, chunk.end, self.step_id)
        if len(published):
            chunk.published.append(published)
        rows.advance(row, chunk.end)
        if chunk.completes:
            self._fork(chunk)
        if seq.admissions > 1:
            self.counters.recomputed_tokens += count
        else:  # past the prompt: the newest token of a sequence that was swapped in
            self.counters.prompt_tokens_computed += max(0, min(chunk.end, seq.prompt_len) - start)
        return count

    def _fork(self, chunk: Chunk) -> None:
        """The prompt of a request with several branches is computed: each gets a row."""
        if not chunk.seq.followers:
            return
        self.session.manager.index_scheduled()  # the branches go on from its last block
        for seq in disband(chunk.seq):
            row = self.session.manager.copies.fork(chunk.row, seq, self.session.batch)
            chunk.forks.append((row, int(self.session.rows.tenure[row])))

    def _admit(self, seq: Sequence) -> bool:
        """Gives the head of the queue a row if its whole context fits, with a reserve unless nobody runs.

        Each further branch needs a row, and one block for its first own token.
        """
        session, manager = self.session, self.session.manager
        if len(seq.followers) >= session.rows.num_free:
            return False
        spare, running = manager.pool.available - promised_blocks(session), session.rows.count
        reserve = reserve_of(session, self.config)
        beside = reserve + (len(seq.followers) if running else 0)  # branches may leave while it waits
        spare -= beside
        if running and session.blocked.holds(seq.arrival, spare, manager.num_published):
            return False
        copy = session.copy_of(seq)
        if copy is not None and not copy.done:
            return False
        match, need = admission_of(session, self.config, seq, self.step_id)
        needed = need.total - beside
        if needed > spare:
            session.blocked = Blocked(seq.arrival, needed, manager.num_published)
            return False
        self._start(self.waiting.pop(), match, copy)
        return True

    def _start(self, seq: Sequence, match: Match, copy: HostCopy | None) -> None:
        session, manager = self.session, self.session.manager
        start = len(match.blocks) * manager.block_size + match.count
        if copy is None:
            self._count_lookup(seq, match, start)
        pending = match.used[manager.index.published_in[match.used] > session.applied]
        row = manager.start(seq, match, final_len(seq.request, session.capacity), session.batch)
        chunk = Chunk(seq, row, int(session.rows.tenure[row]), start, start, pending)
        self.chunks[row] = chunk
        if copy is None:
            self.swapping.recomputes(seq, start)
        else:
            self.swapping.swap_in(session, chunk, copy, self.step_id)
        session.batch.set_up_row(seq)
        if seq.preempted_at is not None:
            self.ages.preempted.observe(np.array([manager.pool.clock.now - seq.preempted_at]))
            seq.preempted_at = None
        seq.state = SeqState.RUNNING

    def _count_lookup(self, seq: Sequence, match: Match, hit: int) -> None:
        counters, manager = self.counters, self.session.manager
        counters.prefix_copied_tokens += match.count
        counters.prefix_copies += int(match.count > 0)
        looked_up = len(seq.tokens) if manager.caches(seq) else 0
        if seq.admissions:
            counters.recompute_lookup_tokens += looked_up
            counters.recompute_hit_tokens += hit
        else:
            counters.prefix_lookup_tokens += looked_up
            counters.prefix_hit_tokens += hit
            counters.prefix_alignment_lost_tokens += manager.lost_to_alignment(seq, match, self.step_id)
            seq.cached_prompt_tokens = hit
            self.admitted.append(Admitted(seq.request.seq_id, hit))
        seq.admissions += 1

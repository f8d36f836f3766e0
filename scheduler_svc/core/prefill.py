"""Who gets the tokens of a step that the decodes leave over, and who is admitted.

Owns fairness among prefills and the admission rule; does not know plans' arrays. Invariant: a sequence is
admitted only when the pool has room for its whole context, beside what earlier admissions were promised.

The bounds, with B the token budget and P = B - decodes >= B // 16 what a step leaves to prefills:
- a decode gets its token in every step (rows are limited so that decodes cannot eat the whole budget);
- the oldest prefill gets at least P / 2 tokens a step, so a prompt of n tokens ends its prefill at most
  2 n / P steps after it became the oldest, whatever arrives meanwhile;
- of the other half the shortest remainder is served first: a prompt of at most P / 2 tokens at the head of
  the queue is computed in the step that admits it, however long the prompts are that are being computed;
- what one of them leaves over goes to the other: no token of the budget is lost while somebody could use it.
"""

from dataclasses import dataclass, field

import numpy as np

from scheduler_svc.core.admission import final_len
from scheduler_svc.core.batch_builder import BatchBuilder, Chunk
from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.plan import Admitted, Capacity, SchedulerConfig, StepId
from scheduler_svc.core.rows import Rows
from scheduler_svc.core.sequence import SeqState, Sequence
from scheduler_svc.core.stats import Counters
from scheduler_svc.core.waiting_queue import WaitingQueue

PREFILL_SHARE = 16
"""1 / PREFILL_SHARE of the token budget is never given to decodes."""


def row_limit(config: SchedulerConfig, capacity: Capacity) -> tuple[int, int]:
    """(rows, tokens) of a step: so few rows that decodes leave tokens to prefills, if there is more than one
    token.
    """
    budget = min(config.max_num_batched_tokens, capacity.max_batch_tokens)
    kept = max(1, budget // PREFILL_SHARE) if budget > 1 else 0
    return min(config.max_num_seqs, capacity.max_batch_seqs, budget - kept), budget


@dataclass(slots=True)
class PrefillPass:
    """The prefill half of building one plan. applied: the last step whose answer was taken in."""

    config: SchedulerConfig
    capacity: Capacity
    rows: Rows
    manager: BlockManager
    batch: BatchBuilder
    waiting: WaitingQueue
    counters: Counters
    step_id: StepId
    applied: int
    chunks: dict[int, Chunk] = field(default_factory=dict)
    admitted: list[Admitted] = field(default_factory=list)

    def run(self, budget: int, admit: bool) -> None:
        """Fills `chunks` with up to `budget` tokens; takes sequences out of the queue only if `admit`."""
        if not self.rows.prefilling and not (admit and self.waiting):
            return
        half = budget - budget // 2
        rest = budget - half + self._oldest_first(half)
        rest = self._shortest_first(rest, admit)
        if rest:
            self._oldest_first(rest)

    def _oldest_first(self, budget: int) -> int:
        """Returns what is left of the budget."""
        for seq in sorted(self.rows.prefilling.values(), key=lambda seq: seq.order):
            if not budget:
                break
            budget -= self._advance(seq.row, budget)
        return budget

    def _shortest_first(self, budget: int, admit: bool) -> int:
        """Shortest remainder first, of one priority; the head of the queue counts with its whole context."""
        inside = sorted(self.rows.prefilling.values(), key=self._rank, reverse=True)
        while budget:
            head = self.waiting.head() if admit and self.rows.num_free else None
            if head is not None and not (inside and self._rank(inside[-1]) <= self._rank(head)):
                if not self._admit(head):
                    admit = False
                    continue
                budget -= self._advance(head.row, budget)
            elif inside:
                budget -= self._advance(inside.pop().row, budget)
            else:
                break
        return budget

    def _rank(self, seq: Sequence) -> tuple[int, int, int]:
        done = int(self.rows.scheduled[seq.row]) if seq.row >= 0 else 0
        return (seq.request.priority, len(seq.tokens) - done, seq.arrival)

    def _advance(self, row: int, budget: int) -> int:
        """Schedules up to `budget` more tokens of a prefill, as far as blocks and the chunk limit allow."""
        rows, manager = self.rows, self.manager
        seq = rows.prefilling.get(row)
        if seq is None:
            return 0
        start = int(rows.scheduled[row])
        chunk = self.chunks.get(row)
        already = 0 if chunk is None else chunk.end - chunk.start
        limit = self.config.max_prefill_chunk - already if self.config.max_prefill_chunk else budget
        count = min(budget, limit, len(seq.tokens) - start, manager.coverable(row))
        if count <= 0:
            return 0
        end = start + count
        if chunk is None:
            chunk = Chunk(seq, row, int(rows.tenure[row]), start, end, np.empty(0, np.int32))
            self.chunks[row] = chunk
        chunk.end = end
        manager.cover(row, end, self.batch)
        published = manager.publish_scheduled(row, start, end, self.step_id)
        if len(published):
            chunk.published.append(published)
        rows.scheduled[row] = rows.target[row] = end
        if seq.admissions > 1:
            self.counters.recomputed_tokens += count
        else:
            self.counters.prompt_tokens_computed += count
        if end == len(seq.tokens):
            del rows.prefilling[row]
            rows.target[row] = min(end + 1, int(rows.last[row]))
        return count

    def _admit(self, seq: Sequence) -> bool:
        """Gives the head of the queue a row if its whole context fits, with a reserve unless nobody runs."""
        manager, pool = self.manager, self.manager.pool
        hits = manager.match_prefix(seq)
        idle_hits = int(np.count_nonzero(pool.ref_count[hits] == 0))  # they stop being available too
        lacking = manager.blocks_for(len(seq.tokens)) - len(hits) + idle_hits
        reserve = self.config.watermark_blocks if self.rows.count else 0
        if lacking + reserve > pool.available - self._promised():
            return False
        self.waiting.pop()
        lost = manager.partial_match(seq, hits)
        row = manager.start(seq, hits, final_len(seq.request, self.capacity), self.batch)
        self.batch.set_up_row(seq)
        pending = hits[manager.index.published_in[hits] > self.applied]
        start = len(hits) * manager.block_size
        self.chunks[row] = Chunk(seq, row, int(self.rows.tenure[row]), start, start, pending)
        self._count_lookup(seq, start, lost)
        seq.state = SeqState.RUNNING
        return True

    def _promised(self) -> int:
        """Blocks that the contexts of rows under prefill still lack."""
        rows, manager = self.rows, self.manager
        return sum(
            max(0, manager.blocks_for(len(seq.tokens)) - int(rows.num_blocks[row]))
            for row, seq in rows.prefilling.items()
        )

    def _count_lookup(self, seq: Sequence, hit: int, lost: int) -> None:
        counters, looked_up = self.counters, len(seq.tokens) if seq.request.use_prefix_cache else 0
        if not self.config.prefix_cache:
            looked_up = 0
        if seq.admissions:
            counters.recompute_lookup_tokens += looked_up
            counters.recompute_hit_tokens += hit
        else:
            counters.prefix_lookup_tokens += looked_up
            counters.prefix_hit_tokens += hit
            counters.prefix_alignment_lost_tokens += lost
            counters.prompt_tokens_cached += hit
            seq.cached_prompt_tokens = hit
            self.admitted.append(Admitted(seq.seq_id, hit))
        seq.admissions += 1

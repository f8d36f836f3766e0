"""The scheduler: who runs in the next step, and what a step's answer means for whom.

Owns the order of decisions; does not know the wire, the clock or the model. Invariant: the same calls give
the same plans, and every sequence ends exactly once, in a `Finished` notice.

A step is built in this order: decodes (their blocks first), prefills under way, admissions. Up to `depth`
steps are in flight; the only thing unknown while one is are the values of the ids it samples.
"""

from collections.abc import Iterator

import numpy as np

from scheduler_svc.core.admission import refusal_of, refusal_of_empty
from scheduler_svc.core.ages import Ages
from scheduler_svc.core.batch_builder import Chunk
from scheduler_svc.core.block_hash import HashFunction, xxh3_128
from scheduler_svc.core.checks import Checks, Ledger
from scheduler_svc.core.explanation import Explanation, explain
from scheduler_svc.core.in_flight import Step
from scheduler_svc.core.inspection import blocks_of, pool_map_of, stats_of, view_of
from scheduler_svc.core.invariants import Audit
from scheduler_svc.core.kv_feed import KvFeed
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.plan import (
    MAX_DEPTH,
    BlockId,
    Capacity,
    FinishReason,
    Int64Array,
    NewRequest,
    Notices,
    Refusal,
    RefusalReason,
    SchedulerConfig,
    SeqId,
    StepId,
    StepPlan,
    StepResult,
    TokenEvents,
)
from scheduler_svc.core.pool_picture import BlockView, PoolPicture, block_view_of, picture_of
from scheduler_svc.core.preemption import choose_victim
from scheduler_svc.core.prefill import PrefillPass
from scheduler_svc.core.results import ResultTaker
from scheduler_svc.core.sequence import Sequence, SequenceView
from scheduler_svc.core.session import Session, open_session
from scheduler_svc.core.stats import Counters, PoolMap, PoolStats
from scheduler_svc.core.swapping import Swapping


class Scheduler:
    """The core. hash_block: the hash of the prefix index, an argument for tests.

    Times (`now`) are seconds on the caller's clock. Raises ValueError for a config that cannot run.
    """

    def __init__(self, config: SchedulerConfig, hash_block: HashFunction = xxh3_128) -> None:
        if min(config.max_prefill_chunk, config.watermark_blocks) < 0:
            raise ValueError(f"max_prefill_chunk and watermark_blocks must not be negative: {config}")
        if min(config.max_num_seqs, config.max_num_batched_tokens) < 1 or not 1 <= config.depth <= MAX_DEPTH:
            raise ValueError(f"rows and tokens of a step must be >= 1, depth in 1..{MAX_DEPTH}: {config}")
        self._config = config
        self._hash_block = hash_block
        self._counters = Counters()
        self._ages = Ages()
        self._lifecycle = Lifecycle(config.priority_aging)
        self._swapping = Swapping(self._lifecycle, config, self._counters)
        self._results = ResultTaker(self._lifecycle, self._counters, self._swapping)
        self._last_step = StepId(0)
        self.kv_feed = KvFeed(self._lifecycle, self._settle)
        self._checks = Checks(self._lifecycle, self._counters, self._settle)

    # What the shell tells

    def worker_ready(self, capacity: Capacity) -> None:
        """A session with an empty pool and no rows begins. Requests that can never run on it end at once."""
        self._lose_worker()
        session = open_session(
            capacity, self._config, self._counters, self._ages, self._hash_block, self._last_step
        )
        self._lifecycle.session = session
        session.manager.index.log = self._lifecycle.kv_log
        self._swapping.session_opened()
        for seq in self._lifecycle.waiting.sequences():
            refusal = refusal_of(seq.request, capacity, session.rows.max_rows)
            if refusal is not None:
                outgrown = refusal.reason is RefusalReason.EXCEEDS_KV_POOL
                reason = FinishReason.KV_POOL if outgrown else FinishReason.ERROR
                self._lifecycle.end_group(seq, reason, error=refusal.message)
            else:
                self._end_if_outgrown(session, seq)

    def worker_lost(self) -> None:
        """Back to the last answer taken in: nothing is computed, nothing in flight, everybody waits."""
        self._lose_worker()

    def _lose_worker(self) -> None:
        if self._lifecycle.session is not None:
            self._counters.worker_losses += 1
            self._lifecycle.close_session()

    def add(self, request: NewRequest, now: float) -> Refusal | None:
        """Queues a request, or says why it can never run. Raises ValueError if an id of it is live."""
        session = self._lifecycle.session
        refusal = refusal_of_empty(request)
        if refusal is None and session is not None:
            refusal = refusal_of(request, session.capacity, session.rows.max_rows)
        if refusal is not None:
            return refusal
        self._lifecycle.add(request, now)
        return None

    def abort(self, seq_id: SeqId, now: float) -> bool:
        """Ends a sequence, whatever it is doing; nothing of it is delivered any more. False if it was not
        live.
        """
        seq = self._lifecycle.live.get(seq_id)
        if seq is None:
            return False
        self._set_clock(now)
        self._lifecycle.end(seq, FinishReason.ABORTED)
        return True

    def stop(self, seq_id: SeqId, output_len: int, reason: FinishReason, now: float) -> bool:
        """Ends a sequence as if it had ended with `output_len` tokens. False if it was not live."""
        seq = self._lifecycle.live.get(seq_id)
        if seq is None:
            return False
        self._set_clock(now)
        self._counters.overshoot_tokens += max(0, self._lifecycle.output_len(seq) - output_len)
        self._lifecycle.end(seq, reason, output_len=output_len)
        return True

    def apply(self, result: StepResult, now: float) -> TokenEvents:
        """Takes in one answer. Odd answers are counted and cost at most the rows they are about."""
        self._set_clock(now)
        return self._results.take(result)

    def flush_prefix_cache(self, namespace: str | None) -> int:
        """Nothing computed so far is found any more, in one namespace or, for None, in all; returns how many
        blocks were forgotten.
        """
        session = self._lifecycle.session
        if session is None:
            return 0
        forgotten = session.manager.flush(namespace)
        self._swapping.flushed(session, namespace)
        self._counters.prefix_flushed_blocks += forgotten
        return forgotten

    def take_notices(self) -> Notices:
        """Who was admitted and who ended since the last call."""
        return self._lifecycle.take_notices()

    # The next step

    def schedule(self, now: float) -> StepPlan | None:
        """The next step, or None: no worker, `depth` steps in flight, nothing to do, or a need to wait for an
        answer.
        """
        session = self._lifecycle.session
        if session is None:
            return None
        session.manager.index_scheduled()  # the plan before has left
        if len(session.in_flight) >= self._config.depth:
            return None
        self._set_clock(now)
        admit = session.host is None or not self._swapping.relieve(session, StepId(self._last_step + 1))
        while True:
            decodes = session.rows.decodes()
            openers = session.rows.without_room(decodes)  # they need one more block
            needed = len(openers) + session.manager.copies.needed_before(decodes)
            if needed <= session.manager.pool.available:
                plan = self._plan(session, decodes, openers, admit)
                if plan is not None or not session.rows.prefilling:
                    return plan or self._transfer_plan(session)
            if len(session.in_flight):
                return None  # a stop in it may free what is missing
            plan = self._transfer_plan(session)
            if plan is not None:
                return plan  # what is missing may be fenced
            self._free_blocks(session)
            admit = not session.rows.count  # none is admitted in a step that preempted, while others can run

    def _plan(
        self, session: Session, decodes: Int64Array, openers: Int64Array, admit: bool
    ) -> StepPlan | None:
        step_id = StepId(self._last_step + 1)
        if len(openers):
            session.manager.open_blocks(openers, session.batch)
        session.manager.copies.before_writes(decodes, session.batch)
        chunks: list[Chunk] = []
        if session.rows.prefilling or (admit and self._lifecycle.waiting and session.rows.num_free):
            chunks = self._prefill(session, step_id, session.budget - len(decodes), admit)
        if not len(decodes) and not chunks:
            return None
        return self._emit(session, decodes, chunks)

    def _transfer_plan(self, session: Session) -> StepPlan | None:
        """A step without rows, which ends all transfers, when nothing else would bring their
        acknowledgement.
        """
        if not session.transfers or len(session.in_flight):
            return None
        return self._emit(session, np.empty(0, np.int64), [])

    def _emit(self, session: Session, decodes: Int64Array, chunks: list[Chunk]) -> StepPlan:
        self._last_step = StepId(self._last_step + 1)
        zero_blocks = session.manager.take_zero_blocks()
        plan = session.batch.build(self._last_step, decodes, chunks, zero_blocks)
        session.manager.copies.let_go()
        self._remember(session, plan, decodes, chunks)
        self._counters.count_step(len(decodes), len(chunks))
        return plan

    def _prefill(self, session: Session, step_id: StepId, budget: int, admit: bool) -> list[Chunk]:
        waiting = self._lifecycle.waiting
        work = PrefillPass(
            session, self._config, waiting, self._counters, self._ages, self._swapping, step_id
        )
        work.run(budget, admit)
        self._lifecycle.note_admitted(work.admitted)
        return list(work.chunks.values())

    def _remember(self, session: Session, plan: StepPlan, decodes: Int64Array, chunks: list[Chunk]) -> None:
        rows, count = session.rows, len(decodes)
        full = rows.advance_each(decodes, plan.context_lens[:count], plan.slot_mapping[:count])
        tenures = rows.tenure[plan.rows]
        sample_rows, sample_tenures = decodes, tenures
        if chunks:
            sampling = [row for chunk in chunks for row in chunk.samplers]
            sample_rows = np.concatenate((decodes, np.array(sampling, np.int64)))
            sample_tenures = rows.tenure[sample_rows]
        step = Step(
            plan.step_id, plan.rows, tenures, sample_rows, sample_tenures, rows.num_releases,
            decodes[full], plan.context_lens[full], chunks,
        )  # fmt: skip
        session.in_flight.push(step)

    def _free_blocks(self, session: Session) -> None:
        """Nothing is in flight and blocks are missing: the worst-placed sequence gives way."""
        victim = choose_victim(session.rows.running())
        if session.rows.count == 1:
            self._lifecycle.end(victim, FinishReason.KV_POOL)
            return
        self._swapping.recompute(session, victim)
        self._lifecycle.requeue(victim)
        self._end_if_outgrown(session, victim)

    def _end_if_outgrown(self, session: Session, seq: Sequence) -> None:
        """A waiting sequence whose present context is larger than the pool can never come back."""
        if session.manager.blocks_for(len(seq.tokens)) > session.capacity.num_blocks:
            self._lifecycle.end_group(seq, FinishReason.KV_POOL)

    # Inspection

    def settle(self) -> None:
        """The part of a look at the pool that bears on decisions: a replay does it where somebody looked."""
        self._settle()

    @property
    def num_in_flight(self) -> int:
        session = self._lifecycle.session
        return 0 if session is None else len(session.in_flight)

    def has_work(self) -> bool:
        """Whether any sequence is live, any step in flight or any transfer not acknowledged."""
        session = self._lifecycle.session
        return bool(self._lifecycle.live) or self.num_in_flight > 0 or bool(session and session.transfers)

    def audit(self) -> Audit:
        """Checks the invariants of the whole state; costs a walk over all blocks."""
        return self._checks.audit(self._last_step)

    def check_plan(self, plan: StepPlan) -> list[str]:
        """What is wrong with a plan just made; for tests and for sampling in production."""
        return self._checks.check_plan(plan)

    def ledger(self) -> Ledger | None:
        """What an allocation may change, for `changed_by_failure`; costs a walk over all blocks."""
        return self._checks.ledger()

    def stats(self) -> PoolStats:
        self._settle()
        return stats_of(self._lifecycle, self._counters, self._ages, self._swapping.record)

    def pool_map(self) -> PoolMap:
        self._settle()
        return pool_map_of(self._lifecycle.session)

    def pool_picture(self, max_tables: int, max_sequences: int) -> PoolPicture:
        """The pool map with owners, contents, the first block tables and sequences."""
        self._settle()
        return picture_of(self._lifecycle, max_tables, max_sequences)

    def block_view(self, block: BlockId, now: float) -> BlockView | None:
        """One block and its neighbours in the prefix index; None without a worker or such a block."""
        self._settle()
        session = self._lifecycle.session
        if session is None or not 0 <= block < session.capacity.num_blocks:
            return None
        return block_view_of(session, block, now)

    def sequence_blocks(self, seq_id: SeqId) -> list[tuple[int, int, int, str]]:
        """(block, ref_count, fill, hash prefix) of each table entry; empty if it holds no row."""
        self._settle()
        seq, session = self._lifecycle.live.get(seq_id), self._lifecycle.session
        return blocks_of(session, seq) if seq is not None and session is not None and seq.row >= 0 else []

    def sequences(self) -> Iterator[SequenceView]:
        """All live sequences in order of arrival."""
        return (view_of(self._lifecycle, seq) for seq in list(self._lifecycle.live.values()))

    def explain(self, seq_id: SeqId, now: float) -> Explanation | None:
        """Why the sequence waits or what it was served; None if it is not live."""
        self._settle()
        seq = self._lifecycle.live.get(seq_id)
        return None if seq is None else explain(self._lifecycle, self._config, self._counters, seq, now)

    def _set_clock(self, now: float) -> None:
        if self._lifecycle.session is not None:
            self._lifecycle.session.manager.pool.clock.now = now

    def _settle(self) -> None:
        """Brings the prefix index up to date before a look at it. From then on more can be hit, so a look
        is an input like any other.
        """
        if self._lifecycle.session is not None:
            self._lifecycle.session.manager.settle()

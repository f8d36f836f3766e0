"""Preemption by swap: when it begins, who is swapped out, how a sequence comes back, and what all of it cost.

Owns the choice between recompute and swap, and both ends of a transfer; does not know plans' arrays.
Invariant: a sequence is swapped whole or not at all, a copy is read only after the worker acknowledged it,
and no swap is begun for a need of the present plan, which it would meet too late.

A swap begins below a low-water mark that is worked out at each step: the blocks that the running sequences
will open until the transfer can have been acknowledged, and those that prefills under way were promised. An
admission leaves the growth of twice that time, so that what has just come back is not put out again.
"""

import numpy as np

from scheduler_svc.core.batch_builder import Chunk
from scheduler_svc.core.cost_model import CostModel
from scheduler_svc.core.decisions import Decision, Mode, PreemptionRecord, Reason
from scheduler_svc.core.growth import growth, promised_blocks, swap_horizon
from scheduler_svc.core.host_tier import HostCopy, HostTier
from scheduler_svc.core.in_flight import Step
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.plan import PreemptionMode, SchedulerConfig, StepId, StepResult
from scheduler_svc.core.preemption import choose_victim
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.session import Session
from scheduler_svc.core.stats import Counters


class Swapping:
    """Lives as long as the core; what belongs to a worker lies in `Session.host`."""

    def __init__(self, lifecycle: Lifecycle, config: SchedulerConfig, counters: Counters) -> None:
        self.model = CostModel()
        self.record = PreemptionRecord()
        self._lifecycle = lifecycle
        self._forced = config.preemption is not PreemptionMode.AUTO
        self._horizon = swap_horizon(config)
        self._counters = counters

    def session_opened(self) -> None:
        """Another worker has other rates, and nothing of what was findable on the last one."""
        self.model = CostModel()
        for seq in self._lifecycle.waiting.sequences():
            if seq.decision is not None:
                seq.decision.findable = 0

    # The choice

    def relieve(self, session: Session, step_id: StepId) -> bool:
        """Swaps out, in the plan being built, as long as blocks are about to run out. True if it did."""
        host, swapped = session.host, False
        while host is not None and session.rows.count > 1 and self._is_low(session):
            victim = choose_victim(session.rows.running())
            decision = self.weigh(session, victim)
            if decision.mode is Mode.RECOMPUTE or not self._is_worth_it(session, victim):
                break
            self._swap_out(session, host, victim, decision, step_id)
            swapped = True
        return swapped

    def weigh(self, session: Session, victim: Sequence) -> Decision:
        """Which way the victim should go, were there time for both."""
        rows, pool = session.rows, session.manager.pool
        blocks, computed = rows.blocks_of(victim.row), int(rows.scheduled[victim.row])
        findable = int(np.count_nonzero(pool.cached[blocks])) * rows.block_size
        recompute = self.model.recompute_seconds(computed, findable)
        swap = self.model.swap_seconds(len(blocks) * session.capacity.bytes_per_block)
        mode, reason = Mode.SWAP, Reason.FORCED
        if session.host is None:
            mode = Mode.RECOMPUTE
        elif len(blocks) > session.host.num_free:
            mode, reason = Mode.RECOMPUTE, Reason.HOST_FULL
        elif not self._forced:
            mode, reason = (Mode.SWAP if swap < recompute else Mode.RECOMPUTE), Reason.COST
        return Decision(mode, reason, recompute, swap, computed, findable)

    def recompute(self, session: Session, victim: Sequence) -> None:
        """Records that the victim gives way by recompute, whatever else would have been right."""
        decision = self.weigh(session, victim)
        if decision.mode is Mode.SWAP:
            decision.mode, decision.reason = Mode.RECOMPUTE, Reason.NEED
        self._note(session, victim, decision)

    def _is_low(self, session: Session) -> bool:
        rows, pool = session.rows, session.manager.pool
        coming = pool.available + pool.num_fenced
        if not (rows.prefilling or rows.num_forked) and coming >= rows.count * session.manager.blocks_for(
            self._horizon
        ):
            return False
        return coming + self._ending(session) < growth(session, self._horizon) + promised_blocks(session)

    def _ending(self, session: Session) -> int:
        """Blocks of rows whose last token is in flight."""
        rows = session.rows
        return sum(int(rows.num_blocks[seq.row]) for seq in rows.running() if self._ends(session, seq))

    def _ends(self, session: Session, seq: Sequence) -> bool:
        return not session.rows.left[seq.row] and seq.row not in session.rows.prefilling

    def _is_worth_it(self, session: Session, victim: Sequence) -> bool:
        """A leader of branches is not: what it computes is theirs too, and only the fork gives them rows. Nor
        is one that could never come back, for with what is in flight it is larger than the pool.
        """
        rows, row = session.rows, victim.row
        length = max(int(rows.known[row]), int(rows.scheduled[row]) + 1)
        if session.manager.blocks_for(length) > session.capacity.num_blocks:
            return False
        return rows.num_blocks[row] > 0 and not victim.followers and not self._ends(session, victim)

    def _note(self, session: Session, victim: Sequence, decision: Decision) -> None:
        victim.decision = decision
        victim.preemptions += 1
        victim.preempted_at = session.manager.pool.clock.now
        self.record.chosen(decision)
        self._counters.preemptions += 1
        if decision.mode is Mode.RECOMPUTE:
            self._counters.preempted_tokens += decision.computed

    # Out and back

    def _swap_out(
        self, session: Session, host: HostTier, victim: Sequence, decision: Decision, step_id: StepId
    ) -> None:
        rows, row = session.rows, victim.row
        device, computed = rows.blocks_of(row).copy(), int(rows.scheduled[row])
        flushed = not rows.caches[row]  # since it was admitted, or it never publishes
        self._note(session, victim, decision)
        taken = host.swap_out(victim.seq_id, (row, int(rows.tenure[row])), device, computed, step_id, flushed)
        session.manager.pool.pin(device)
        session.batch.swap_out(device, taken)
        self._counters.blocks_swapped_out += len(device)
        self._lifecycle.requeue(victim)

    def flushed(self, session: Session, namespace: str | None) -> None:
        """What these sequences computed so far is not to be found any more, when they come back either."""
        for seq in self._lifecycle.waiting.sequences() if session.host is not None else ():
            copy = session.host.copies.get(seq.seq_id) if session.host is not None else None
            if copy is not None and namespace in (None, seq.request.namespace):
                copy.flushed = True

    def swap_in(self, session: Session, chunk: Chunk, copy: HostCopy, step_id: StepId) -> None:
        """Gives a row that has just begun, and holds what the index still had, the rest of its copy."""
        manager, rows, row, host = session.manager, session.rows, chunk.row, session.host
        assert host is not None
        hits, found = int(rows.num_blocks[row]), chunk.start
        host.swap_in(chunk.seq.seq_id, step_id)
        if chunk.seq.decision is not None:
            chunk.seq.decision.cost += copy.seconds
        if copy.computed <= found:
            return
        chunk.start = chunk.end = copy.computed
        manager.cover(row, copy.computed, session.batch)
        rows.advance(row, copy.computed)
        moved = rows.blocks_of(row)[hits:].copy()
        session.batch.swap_in(copy.blocks[hits:], moved)
        if copy.flushed:
            rows.caches[row] = False
        published = manager.publish_scheduled(row, found, copy.computed, step_id)
        if len(published):
            chunk.published.append(published)
        chunk.swapped_in = len(moved)
        self._counters.blocks_swapped_in += len(moved)

    def recomputes(self, seq: Sequence, found: int) -> None:
        """A preempted sequence comes back by recompute, with that many tokens from the index; if it was
        swapped out, its copy was lost.
        """
        decision = seq.decision
        if decision is not None:
            self.model.observe_found(found, decision.findable)
        if decision is not None and decision.mode is Mode.SWAP:
            self.record.lost_tokens[Mode.SWAP] += decision.computed
            self._counters.preempted_tokens += decision.computed
            seq.decision = None

    # What answers teach

    def answered(self, session: Session, step: Step, answer: StepResult) -> None:
        """Takes in what a step's answer says of transfers and times."""
        host = session.host
        if answer.acknowledged:
            self._acknowledge(session, answer)
        if host is not None:
            host.answered(step.step_id)
        if step.chunks:
            self._learn(session, step, answer)
        elif len(step.rows):
            self.model.observe_decode(answer.forward_seconds)

    def _acknowledge(self, session: Session, answer: StepResult) -> None:
        host = session.host
        done: list[HostCopy] = []
        for step_id in answer.acknowledged:
            copies = [] if host is None else host.acknowledge(step_id)
            self._counters.odd_results += not copies
            done += copies
        blocks = sum(len(copy.blocks) for copy in done)
        self.model.out.observe(blocks * session.capacity.bytes_per_block, answer.transfer_seconds)
        for copy in done:
            copy.seconds = answer.transfer_seconds * len(copy.blocks) / blocks
            session.manager.pool.unpin(copy.device[::-1])  # the deepest first, as when a sequence ends

    def _learn(self, session: Session, step: Step, answer: StepResult) -> None:
        tokens = sum(chunk.end - chunk.start for chunk in step.chunks)
        moved = sum(chunk.swapped_in for chunk in step.chunks)
        with_decodes = len(step.rows) > len(step.chunks)
        seconds = self.model.observe_prefill(tokens, with_decodes, answer.forward_seconds)
        self.model.back.observe(moved * session.capacity.bytes_per_block, answer.block_move_seconds)
        for chunk in step.chunks:
            decision = chunk.seq.decision
            if decision is None or session.rows.tenure[chunk.row] != chunk.tenure:
                continue
            if decision.mode is Mode.RECOMPUTE:
                decision.cost += seconds * (chunk.end - chunk.start) / tokens
            elif moved:
                decision.cost += answer.block_move_seconds * chunk.swapped_in / moved
            if chunk.completes or decision.mode is Mode.SWAP:
                self.record.came_back(decision)
                chunk.seq.decision = None

"""Drives the scheduling core over a simulated KV pool, without wire, threads or clock.

Owns the worker's half and a record of what came out; knows nothing of the core but its interface. Invariant:
after every operation the core's audit is clean, every plan obeys the step protocol, and nothing is delivered
after an end.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler_svc.core.block_hash import HashFunction, xxh3_128
from scheduler_svc.core.checks import changed_by_failure
from scheduler_svc.core.plan import (
    Capacity,
    Epoch,
    Finished,
    FinishReason,
    Int32Array,
    NewRequest,
    Refusal,
    SamplingParams,
    SchedulerConfig,
    SeqId,
    StepId,
    StepPlan,
    StepResult,
    TokenEvents,
    branch_seed,
)
from scheduler_svc.core.scheduler import Scheduler
from tests.fakes.simulated_kv import SimulatedKv, expected_tokens

VOCAB = 1000
GREEDY = SamplingParams(temperature=0.0)
NO_TOKENS = np.empty(0, np.int32)


@dataclass(frozen=True)
class Sent:
    """A plan at the worker, and the tokens it will answer."""

    plan: StepPlan
    tokens: Int32Array


@dataclass(frozen=True)
class Times:
    """What the worker measures, in seconds: each decode step, prefill token, and block moved."""

    decode: float = 1e-3
    prefill_token: float = 1e-4
    moved_block: float = 1e-5


class CoreDriver:
    """A Scheduler, its simulated worker, and everything delivered so far."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        config: SchedulerConfig | None = None,
        *,
        max_model_len: int = 4096,
        hash_block: HashFunction = xxh3_128,
        vocab_size: int = VOCAB,
        ready: bool = True,
        make_core: Callable[[SchedulerConfig, HashFunction], Scheduler] = Scheduler,
        host_blocks: int = 0,
        times: Times = Times(),
    ) -> None:
        self.capacity = Capacity(
            Epoch(1),
            "model",
            num_blocks,
            block_size,
            4096,
            256,
            max_model_len,
            host_blocks,
            1000 * block_size,
        )
        self.times = times
        self.holds_transfers = False  # the worker acknowledges none until `acknowledge` or it must
        self.swapped_out: set[int] = set()  # everybody that ever was
        self.vocab_size = vocab_size
        self.core = make_core(config or SchedulerConfig(), hash_block)
        self.requests: dict[int, NewRequest] = {}  # by branch, each as it would run alone
        self.outputs: dict[int, list[int]] = {}
        self.finished: dict[int, Finished] = {}
        self.cached: dict[int, int] = {}  # prompt tokens from the cache, by sequence admitted
        self.stopped: set[int] = set()
        self.plans: list[StepPlan] = []
        self.in_flight: deque[Sent] = deque()
        self.kv: SimulatedKv | None = None
        self._next_id = 0
        if ready:
            self.worker_ready()

    # What the shell would do

    def worker_ready(self, capacity: Capacity | None = None) -> None:
        """A new worker with an empty pool, and a session with it."""
        self.capacity = replace(capacity or self.capacity, epoch=Epoch(self.capacity.epoch + 1))
        self.kv = SimulatedKv(
            self.capacity.num_blocks, self.capacity.block_size, self.vocab_size, self.capacity.num_host_blocks
        )
        self.in_flight.clear()
        self.core.worker_ready(self.capacity)
        self.check()

    def worker_lost(self) -> None:
        self.kv = None
        self.in_flight.clear()
        self.core.worker_lost()
        self.check()

    def offer(self, prompt: Sequence[int], **fields: object) -> int | Refusal:
        """Adds a greedy request; its id, that of its first branch, or why it was refused."""
        fields.setdefault("sampling", GREEDY)
        request = NewRequest(SeqId(self._next_id), np.array(prompt, np.int32), **fields)  # type: ignore[arg-type]
        refusal = self.core.add(request, 0.0)
        self.check()
        if refusal is not None:
            return refusal
        self._next_id += request.n
        for branch in range(request.n):
            seed = branch_seed(request.sampling.seed, branch)
            alone = replace(request, n=1, sampling=replace(request.sampling, seed=seed))
            self.requests[request.seq_id + branch] = alone
            self.outputs[request.seq_id + branch] = []
        return request.seq_id

    def add(self, prompt: Sequence[int], max_tokens: int | None = 1, **fields: object) -> int:
        """Adds a greedy request that must be taken; its id."""
        seq_id = self.offer(prompt, max_tokens=max_tokens, **fields)
        assert isinstance(seq_id, int), seq_id
        return seq_id

    def abort(self, seq_id: int) -> bool:
        was_live = self.core.abort(SeqId(seq_id), 0.0)
        self.check()
        return was_live

    def stop(self, seq_id: int, output_len: int, reason: FinishReason = FinishReason.STOP) -> bool:
        self.stopped.add(seq_id)
        was_live = self.core.stop(SeqId(seq_id), output_len, reason, 0.0)
        self.check()
        return was_live

    def flush(self, namespace: str | None = None) -> int:
        forgotten = self.core.flush_prefix_cache(namespace)
        self.check()
        return forgotten

    def schedule(self) -> StepPlan | None:
        """The next plan, checked and obeyed by the worker, whose answer waits in `in_flight`."""
        before = self.core.ledger()
        plan = self.core.schedule(0.0)
        if plan is None:
            wrong = changed_by_failure(before, self.core.ledger())
            assert not wrong, wrong
        else:
            wrong = self.core.check_plan(plan)
            assert not wrong, wrong
            assert self.kv is not None
            self.plans.append(plan)
            self.in_flight.append(Sent(plan, self.kv.apply(plan)))
        self.check()
        return plan

    def answer(self) -> TokenEvents:
        """The worker's oldest answer reaches the core."""
        sent = self.in_flight.popleft()
        return self.apply(self.result(sent, sent.tokens))

    def result(
        self, sent: Sent, tokens: Int32Array, failed_rows: tuple[tuple[int, str], ...] = ()
    ) -> StepResult:
        """The answer to a plan, with the transfers that are done by now: all of them, if it has no rows."""
        assert self.kv is not None
        host, plan, times = self.kv.host, sent.plan, self.times
        done = [step for step in host.under_way if step <= plan.step_id]
        if self.holds_transfers and len(plan.rows):
            done = []
        moved = 0
        for step in done:
            moved += len(next(old for old in self.plans if old.step_id == step).swap_out_pairs)
            host.complete(step)
        prefilled = int(plan.query_lens[plan.query_lens > 1].sum())
        return StepResult(
            plan.step_id,
            tokens,
            failed_rows,
            acknowledged=tuple(map(StepId, done)),
            forward_seconds=times.decode + times.prefill_token * prefilled,
            block_move_seconds=times.moved_block * len(plan.swap_in_pairs),
            transfer_seconds=times.moved_block * moved,
        )

    def answer_failed(self, rows: Sequence[int]) -> TokenEvents:
        """The oldest answer, in which these rows failed; what they wrote is spoilt."""
        sent = self.in_flight.popleft()
        assert self.kv is not None
        tokens = np.where(np.isin(sent.plan.sample_rows, rows), np.int32(-1), sent.tokens)
        for row, query_len, context_len in zip(
            sent.plan.rows.tolist(),
            sent.plan.query_lens.tolist(),
            sent.plan.context_lens.tolist(),
            strict=True,
        ):
            if row in rows and not self._reused(row):
                self.kv.poison(row, context_len - query_len)
        return self.apply(self.result(sent, tokens, tuple((row, "NON_FINITE") for row in rows)))

    def fail_step(self) -> None:
        """The oldest step fails as a whole; the worker takes no plan until a new session."""
        sent = self.in_flight.popleft()
        self.apply(StepResult(sent.plan.step_id, NO_TOKENS, failure="DEVICE_ERROR"))
        self.in_flight.clear()
        self.kv = None

    def apply(self, result: StepResult) -> TokenEvents:
        events = self.core.apply(result, 0.0)
        for seq_id, token, output_len in zip(
            events.seq_ids.tolist(), events.token_ids.tolist(), events.output_lens.tolist(), strict=True
        ):
            assert seq_id not in self.finished, f"token for {seq_id} after its end"
            self.outputs[seq_id].append(token)
            assert len(self.outputs[seq_id]) == output_len
        self.check()
        return events

    def odd_answer(self, step_id: int = 10**6, tokens: Sequence[int] = (1,)) -> TokenEvents:
        """An answer that nobody waits for."""
        return self.apply(StepResult(StepId(step_id), np.array(tokens, np.int32)))

    # Whole runs

    def fill(self) -> list[StepPlan]:
        """Schedules until the core wants to wait."""
        plans = []
        while (plan := self.schedule()) is not None:
            plans.append(plan)
        return plans

    def step(self) -> None:
        """Fills the pipeline and takes in one answer."""
        self.fill()
        if self.in_flight:
            self.answer()

    def run(self, max_steps: int = 10_000) -> int:
        """Until no work is left; returns the steps it took. Raises AssertionError when it does not come to an
        end.
        """
        if self.kv is None:
            self.worker_ready()
        for steps in range(max_steps):
            if not self.core.has_work():
                return steps
            before = len(self.plans)
            self.fill()
            assert self.in_flight or len(self.plans) > before or not self.core.has_work(), "stuck"
            if self.in_flight:
                self.answer()
        raise AssertionError(f"still at work after {max_steps} steps")

    # What came out

    def check(self) -> None:
        """Takes the notices and audits the core."""
        notices = self.core.take_notices()
        self.swapped_out |= {view.seq_id for view in self.core.sequences() if view.host_blocks}
        for admitted in notices.admitted:
            assert admitted.seq_id not in self.cached, f"{admitted.seq_id} admitted twice"
            self.cached[admitted.seq_id] = admitted.cached_prompt_tokens
        for finished in notices.finished:
            assert finished.seq_id not in self.finished, f"{finished.seq_id} ended twice"
            self.finished[finished.seq_id] = finished
            self._check_end(finished)
        found = self.core.audit()
        assert not found.violations, found.violations
        assert not found.leaked

    def reason(self, seq_id: int) -> FinishReason:
        return self.finished[seq_id].reason

    def expected(self, seq_id: int, count: int) -> list[int]:
        """The first tokens that a right scheduler delivers for it."""
        request = self.requests[seq_id]
        sampling = request.sampling
        prompt = request.prompt.tolist()
        return expected_tokens(prompt, count, self.vocab_size, sampling.temperature, sampling.seed)

    def check_outputs(self) -> None:
        """Every token delivered so far is the right one."""
        for seq_id, output in self.outputs.items():
            assert output == self.expected(seq_id, len(output)), seq_id

    def _check_end(self, finished: Finished) -> None:
        output, request = self.outputs[finished.seq_id], self.requests[finished.seq_id]
        assert output == self.expected(finished.seq_id, len(output)), finished
        if finished.seq_id in self.stopped:
            return
        assert finished.output_len == len(output)
        limit = self.capacity.max_model_len - len(request.prompt)
        if finished.reason is FinishReason.LENGTH:
            assert len(output) == min(limit, limit if request.max_tokens is None else request.max_tokens)
        if finished.reason is FinishReason.STOP:
            assert output[-1] == finished.matched_token
            assert finished.matched_token in request.stop_token_ids
        open_part = output[:-1] if finished.reason is FinishReason.STOP else output
        assert request.stop_token_ids.isdisjoint(open_part[request.min_tokens :]), "it ran past a stop id"

    def _reused(self, row: int) -> bool:
        """Whether a later plan gave the row to somebody else or took it away."""
        return any(
            row in sent.plan.released_rows or any(setup.row == row for setup in sent.plan.setups)
            for sent in self.in_flight
        )

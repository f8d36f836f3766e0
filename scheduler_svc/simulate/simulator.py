"""The event loop: arrivals, steps and answers on a virtual clock, through the production core.

Owns the order of events and the tokens that the modelled worker answers; decides nothing that the core
decides and measures nothing (`collector` does). Invariant: time never goes back, the worker computes one step
at a time in the order of the plans, and the run ends only when every request has ended.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from scheduler_svc.core.plan import (
    Capacity,
    Epoch,
    Int32Array,
    Int64Array,
    NewRequest,
    SamplingParams,
    SchedulerConfig,
    SeqId,
)
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.simulate.collector import Collector
from scheduler_svc.simulate.modelled_worker import ModelledWorker, Sent
from scheduler_svc.simulate.trace import Trace, output_tokens
from scheduler_svc.simulate.worker_model import StepTimes

FINGERPRINT = "simulated"
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Setup:
    """What one run is given. num_blocks of block_size tokens; max_model_len: tokens of prompt and output.

    arrival_scale: the trace's arrivals per second, multiplied. one_at_a_time: each request arrives when the
    one before has ended. block_ids: prompts are the trace's block ids, one token each, with one token of
    output. shortest_first: requests of half the prompt length have the better priority. queue_timeout:
    seconds after which a request that was never admitted goes away; 0: never. spare_blocks: beyond
    num_blocks, only to meet the reserve of admissions where nothing grows; never held. n: sequences that each
    request asks for. host_blocks: of the host tier, 0: nothing is swapped.
    """

    config: SchedulerConfig
    block_size: int
    num_blocks: int
    max_model_len: int
    arrival_scale: float = 1.0
    one_at_a_time: bool = False
    block_ids: bool = False
    shortest_first: bool = False
    queue_timeout: float = 0.0
    spare_blocks: int = 0
    n: int = 1
    host_blocks: int = 0

    @property
    def capacity(self) -> Capacity:
        config, blocks = self.config, self.num_blocks + self.spare_blocks
        return Capacity(
            Epoch(1), FINGERPRINT, blocks, self.block_size, config.max_num_batched_tokens,
            config.max_num_seqs, self.max_model_len, self.host_blocks,
        )  # fmt: skip


@dataclass(slots=True)
class Simulator:
    """One run of a trace. progress: called with the number of requests that have ended, now and then."""

    trace: Trace
    setup: Setup
    worker: StepTimes
    collector: Collector
    progress: Callable[[int], None] = field(default=lambda ended: None)
    now: float = 0.0
    core: Scheduler = field(init=False)
    _next: int = 0
    _ended: int = 0
    _device: ModelledWorker = field(init=False)
    _sent: deque[Sent] = field(default_factory=deque)
    _row_seq_ids: Int64Array = field(init=False)
    _deadlines: deque[tuple[float, int]] = field(default_factory=deque)
    _outputs: "_Outputs" = field(init=False)

    def __post_init__(self) -> None:
        self.core = Scheduler(self.setup.config)
        block_bytes = self.setup.block_size * self.worker.kv_token_bytes
        self.core.worker_ready(replace(self.setup.capacity, bytes_per_block=block_bytes))
        self._device = ModelledWorker(self.worker, self.setup.block_size)
        self._row_seq_ids = np.zeros(self.setup.config.max_num_seqs, np.int64)
        self._outputs = _Outputs(self.trace, self.setup.n)

    def run(self) -> None:
        """From the first arrival to the last answer."""
        while True:
            self._take_arrivals()
            self._send_plans()
            moment = self._next_moment()
            if moment is None:
                break
            self.now = moment
            self.collector.at(self.now, self.core)
            self._give_up_waiting()
            if self._sent and self._sent[0].ends_at <= self.now:
                self._take_answer()
        assert not self.core.has_work(), "the core waits for nothing that comes"
        assert self._ended == len(self.trace.requests) * self.setup.n
        self.collector.close(self.now, self.core)

    def _arrival(self, number: int) -> float:
        return self.trace.requests[number].arrival / self.setup.arrival_scale

    def _take_arrivals(self) -> None:
        total = len(self.trace.requests)
        if self.setup.one_at_a_time:
            while self._next < total and not self.core.has_work():
                self._add(self._next, self.now)
        else:
            while self._next < total and self._arrival(self._next) <= self.now:
                self._add(self._next, self._arrival(self._next))

    def _add(self, number: int, arrived: float) -> None:
        self._next = number + 1
        request = self._request(number)
        refusal = self.core.add(request, arrived)
        self.collector.arrived(number, arrived, refusal)
        if refusal is not None:
            self._end(self.setup.n)
        elif self.setup.queue_timeout:
            self._deadlines.append((arrived + self.setup.queue_timeout, number))

    def _request(self, number: int) -> NewRequest:
        source, by_ids = self.trace.requests[number], self.setup.block_ids
        prompt = self.trace.ids_of(number) if by_ids else self.trace.prompt_of(number)
        return NewRequest(
            SeqId(number * self.setup.n), prompt,
            n=self.setup.n,
            max_tokens=1 if by_ids else max(1, source.output_len),
            sampling=GREEDY,
            priority=len(prompt).bit_length() if self.setup.shortest_first else source.priority,
            namespace=source.namespace,
            use_prefix_cache=source.use_prefix_cache,
        )  # fmt: skip

    def _send_plans(self) -> None:
        while len(self._sent) < self.setup.config.depth:
            plan = self.core.schedule(self.now)
            if plan is None:
                break
            for row_setup in plan.setups:
                self._row_seq_ids[row_setup.row] = row_setup.seq_id
            sent = self._device.send(plan, self._row_seq_ids[plan.sample_rows], self.now)
            self._sent.append(sent)
            self.collector.sent(plan, sent.seconds)
        self._take_notices()

    def _next_moment(self) -> float | None:
        moments = [sent.ends_at for sent in list(self._sent)[:1]]
        if self._next < len(self.trace.requests) and not self.setup.one_at_a_time:
            moments.append(self._arrival(self._next))
        if self._deadlines and self.core.has_work():
            moments.append(self._deadlines[0][0])
        return max(self.now, min(moments)) if moments else None

    def _take_answer(self) -> None:
        sent = self._sent.popleft()
        plan = sent.plan
        contexts = plan.positions[plan.sample_positions].astype(np.int64) + 1
        tokens = self._outputs.at(sent.seq_ids, contexts)
        events = self.core.apply(self._device.answer(sent, tokens), self.now)
        self.collector.answered(self.now, events)
        self._take_notices()

    def _give_up_waiting(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self.now:
            _, number = self._deadlines.popleft()
            if self.collector.is_waiting(number):
                first = number * self.setup.n
                for seq_id in range(first, first + self.setup.n):
                    self.core.abort(SeqId(seq_id), self.now)
                self.collector.gave_up(number)
                self._take_notices()

    def _take_notices(self) -> None:
        notices = self.core.take_notices()
        for admitted in notices.admitted:
            self.collector.admitted(admitted, self.now)
        for finished in notices.finished:
            self.collector.finished(finished, self.now)
        if notices.finished:
            self._end(len(notices.finished))

    def _end(self, count: int) -> None:
        self._ended += count
        self.progress(self._ended // self.setup.n)


class _Outputs:
    """The token that the worker samples: the trace's own where it has them, for the first sequence of a
    request; else made up.
    """

    def __init__(self, trace: Trace, n: int) -> None:
        requests = trace.requests
        self._n = n
        self._prompt_lens = np.array([request.prompt_len for request in requests], np.int64)
        known = [request.output for request in requests if request.output is not None]
        self._starts: Int64Array | None = None
        if len(known) == len(requests):
            lengths = np.array([len(output) for output in known], np.int64)
            self._starts = np.cumsum(lengths) - lengths
            self._ends = self._starts + lengths
            self._tokens = np.concatenate([np.empty(0, np.int32), *known])

    def at(self, seq_ids: Int64Array, contexts: Int64Array) -> Int32Array:
        """[k] the tokens that follow contexts of so many tokens of these sequences."""
        numbers = seq_ids // self._n
        positions = contexts - self._prompt_lens[numbers]
        made_up = output_tokens(seq_ids, positions)
        if self._starts is None:
            return made_up
        places = self._starts[numbers] + positions
        known = (positions >= 0) & (places < self._ends[numbers]) & (seq_ids % self._n == 0)
        made_up[known] = self._tokens[places[known]]
        return made_up

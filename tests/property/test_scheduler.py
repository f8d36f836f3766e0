"""The whole scheduler against a naive model worker: any order of inputs, any fault, the ledger after each.

`CoreDriver` checks after every operation that the audit is clean (I1-I3, I5), that plans obey the protocol
(I4, I7) and that every delivered token is the one that a run alone would give; here are the operations. A01,
A05, A06, A26.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scheduler_svc.core.block_hash import HashFunction, xxh3_128
from scheduler_svc.core.plan import FinishReason, PreemptionMode, SamplingParams, SchedulerConfig
from tests.fakes.core_driver import CoreDriver, Times

VOCAB = 40
SHARED = [[(base + 7 * i) % 3 for i in range(64)] for base in range(2)]
"""Texts that many prompts begin with."""


def constant_hash(_: bytes) -> bytes:
    return bytes(16)


def weak_hash(data: bytes) -> bytes:
    return bytes(15) + bytes([xxh3_128(data)[0] % 3])


prompts = st.builds(
    lambda text, length, tail: text[:length] + tail,
    st.sampled_from(SHARED),
    st.integers(0, 20),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=2),
)
configs = st.builds(
    SchedulerConfig,
    max_num_seqs=st.sampled_from([8, 4, 2, 1]),
    max_num_batched_tokens=st.sampled_from([100, 32, 9, 5, 2, 1]),
    max_prefill_chunk=st.sampled_from([0, 0, 1, 4]),
    watermark_blocks=st.sampled_from([0, 1, 2]),
    depth=st.sampled_from([2, 3, 4, 1]),
    prefix_cache=st.sampled_from([True, True, True, False]),
    match_inside_blocks=st.sampled_from([True, True, False]),
    preemption=st.sampled_from([PreemptionMode.SWAP, PreemptionMode.AUTO, PreemptionMode.RECOMPUTE]),
    hash_seed=st.just(b"seed"),
)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_tokens=st.sampled_from([24, 32, 48, 64, 16]),
        block_size=st.sampled_from([4, 2, 3, 1, 8, 16]),
        config=configs,
        max_model_len=st.sampled_from([60, 30]),
        hash_block=st.sampled_from([xxh3_128, xxh3_128, xxh3_128, xxh3_128, weak_hash, constant_hash]),
        host_tokens=st.sampled_from([64, 16, 0, 200]),
        times=st.sampled_from([Times(), Times(moved_block=1.0), Times(0.0, 0.0, 0.0)]),
    )
    def start(
        self,
        num_tokens: int,
        block_size: int,
        config: SchedulerConfig,
        max_model_len: int,
        hash_block: HashFunction,
        host_tokens: int,
        times: Times,
    ) -> None:
        self.driver = CoreDriver(
            num_tokens // block_size,
            block_size,
            config,
            max_model_len=max_model_len,
            hash_block=hash_block,
            vocab_size=VOCAB,
            host_blocks=host_tokens // block_size,
            times=times,
        )

    @rule(
        prompt=prompts,
        copies=st.sampled_from([3, 2, 1]),
        max_tokens=st.sampled_from([17, 5, 2, 1, None]),
        min_tokens=st.sampled_from([0, 0, 1, 4]),
        stop_token_ids=st.frozensets(st.integers(0, VOCAB - 1), max_size=2),
        sampling=st.builds(SamplingParams, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 3)),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        namespace=st.sampled_from(["", "", "", "a"]),
        use_prefix_cache=st.sampled_from([True, True, True, False]),
        n=st.sampled_from([1, 1, 1, 2, 3]),
    )
    def add(self, prompt: list[int], copies: int, **fields: object) -> None:
        """Requests that share all but their last tokens."""
        for copy in range(copies):
            self.driver.offer([*prompt, *range(copy)], **fields)

    @precondition(lambda self: self.driver.kv is not None)
    @rule(times=st.integers(1, 3))
    def schedule(self, times: int) -> None:
        for _ in range(times):
            self.driver.schedule()

    @precondition(lambda self: self.driver.in_flight)
    @rule()
    def answer(self) -> None:
        self.driver.answer()

    @precondition(lambda self: self.driver.kv is not None)
    @rule(times=st.integers(1, 8))
    def go_on(self, times: int) -> None:
        for _ in range(times):
            self.driver.step()

    @precondition(lambda self: self.driver.capacity.num_host_blocks)
    @rule(hold=st.booleans())
    def hold_transfers(self, hold: bool) -> None:
        self.driver.holds_transfers = hold

    @precondition(lambda self: self.driver.kv is not None)
    @rule(data=st.data())
    def answer_with_failed_rows(self, data: st.DataObject) -> None:
        self.driver.fill()
        rows = self.driver.in_flight[0].plan.rows.tolist() if self.driver.in_flight else []
        if rows:  # a step of transfers alone has none
            failed = st.lists(st.sampled_from(rows), min_size=1, max_size=2, unique=True)
            self.driver.answer_failed(data.draw(failed))

    @precondition(lambda self: self.driver.kv is not None)
    @rule(missing=st.integers(1, 3))
    def answer_with_too_few_tokens(self, missing: int) -> None:
        self.driver.fill()
        if self.driver.in_flight:
            sent = self.driver.in_flight.popleft()
            kept = sent.tokens[: max(0, len(sent.tokens) - missing)]
            self.driver.apply(self.driver.result(sent, kept))

    @precondition(lambda self: len(self.driver.in_flight) == 2)
    @rule()
    def answer_in_the_wrong_order(self) -> None:
        later = self.driver.in_flight.pop()
        self.driver.apply(self.driver.result(later, later.tokens))
        self.driver.answer()

    @rule(what=st.sampled_from(["odd answer", "odd answer", "odd answer", "step", "worker"]))
    def disaster(self, what: str) -> None:
        if what == "odd answer" or self.driver.kv is None:
            self.driver.odd_answer()
        elif what == "worker":
            self.driver.worker_lost()
        else:
            self.driver.fill()
            if self.driver.in_flight:
                self.driver.fail_step()

    @precondition(lambda self: self.driver.requests)
    @rule(back=st.integers(1, 8))
    def abort(self, back: int) -> None:
        seq_id = max(0, len(self.driver.requests) - back)
        live = seq_id not in self.driver.finished
        assert self.driver.abort(seq_id) == live

    @precondition(lambda self: self.driver.requests)
    @rule(back=st.integers(1, 8), cut=st.integers(0, 3))
    def stop(self, back: int, cut: int) -> None:
        seq_id = max(0, len(self.driver.requests) - back)
        if seq_id not in self.driver.finished and self.driver.outputs[seq_id]:
            output_len = max(1, len(self.driver.outputs[seq_id]) - cut)
            assert self.driver.stop(seq_id, output_len)
            assert self.driver.finished[seq_id].output_len == output_len

    @precondition(lambda self: self.driver.kv is None)
    @rule()
    def worker_ready(self) -> None:
        self.driver.worker_ready()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.run()
        self.driver.check_outputs()
        assert self.driver.finished.keys() == self.driver.requests.keys()
        stats = self.driver.core.stats()
        assert (stats.running, stats.waiting, stats.blocks_active, stats.block_refs) == (0, 0, 0, 0)
        assert (stats.blocks_fenced, stats.swapped, stats.host_blocks_free) == (0, 0, stats.host_blocks)
        if all(finished.reason is not FinishReason.ABORTED for finished in self.driver.finished.values()):
            assert stats.counters.generated_tokens == sum(map(len, self.driver.outputs.values()))


def _run(examples: int, derandomize: bool) -> None:
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=derandomize,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(900)
def test_a01_a05_a06_a26_ten_thousand_operations_keep_every_invariant() -> None:
    _run(examples=250, derandomize=True)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_random_operations_keep_every_invariant() -> None:
    _run(examples=2500, derandomize=False)

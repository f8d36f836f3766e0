"""Random operations on a `CoreDriver`: everything that can happen to a core, in any order.

Owns the draw of operations and of what they are about; the driver checks what comes of them. Invariant: the
same seed gives the same run.
"""

import random
from collections import Counter
from dataclasses import dataclass

from scheduler_svc.core.plan import SamplingParams, SchedulerConfig
from tests.fakes.core_driver import CoreDriver


@dataclass(frozen=True)
class Mix:
    """What requests look like. lengths: of the shared beginning of a prompt; tokens: of its output."""

    vocab_size: int = 40
    texts: int = 2
    lengths: tuple[int, ...] = (0, 0, 3, 7, 12, 20)
    tails: tuple[int, ...] = (1, 2)
    max_tokens: tuple[int | None, ...] = (17, 5, 2, 1, None)
    namespaces: tuple[str, ...] = ("", "", "", "a")
    branches: tuple[int, ...] = (1, 1, 1, 1, 2, 3, 5)
    most_live: int = 24


WEIGHTS = {
    "add": 20,
    "schedule": 16,
    "answer": 20,
    "go_on": 50,
    "fail_rows": 2,
    "too_few_tokens": 1,
    "wrong_order": 4,
    "odd_answer": 1,
    "fail_step": 1,
    "lose_worker": 1,
    "bring_worker": 60,
    "abort": 4,
    "stop": 4,
    "flush": 1,
}
"""Likelihoods among the operations that can be done at a moment."""


def random_config(chance: random.Random, **fields: object) -> SchedulerConfig:
    """Settings at which things happen: few rows, small budgets."""
    drawn: dict[str, object] = {
        "max_num_seqs": chance.choice([8, 4, 2, 1]),
        "max_num_batched_tokens": chance.choice([100, 32, 9, 5, 2, 1]),
        "max_prefill_chunk": chance.choice([0, 0, 1, 4]),
        "watermark_blocks": chance.choice([0, 1, 2]),
        "depth": chance.choice([2, 3, 4, 1]),
        "prefix_cache": chance.random() < 0.8,
        "hash_seed": b"seed",
    }
    if drawn["max_prefill_chunk"] > drawn["max_num_batched_tokens"]:  # type: ignore[operator]
        drawn["max_prefill_chunk"] = 0
    return SchedulerConfig(**drawn | fields)  # type: ignore[arg-type]


class RandomRun:
    """One driver under random operations. done: how often each was done."""

    def __init__(self, driver: CoreDriver, chance: random.Random, mix: Mix = Mix()) -> None:
        self.driver = driver
        self.chance = chance
        self.mix = mix
        self.done: Counter[str] = Counter()
        self._texts = [
            [chance.randrange(min(3, mix.vocab_size)) for _ in range(max(mix.lengths) + 1)]
            for _ in range(mix.texts)
        ]
        weights = WEIGHTS | ({"hold_transfers": 3} if driver.capacity.num_host_blocks else {})
        self._names, self._weights = list(weights), list(weights.values())

    def operate(self, count: int) -> None:
        """So many operations; one that cannot be done now is drawn anew."""
        while count:
            name = self.chance.choices(self._names, self._weights)[0]
            if getattr(self, f"_{name}")():
                self.done[name] += 1
                count -= 1

    def finish(self) -> None:
        """Runs to the end; nothing may be left, and every token delivered must be right."""
        self.driver.run()
        self.driver.check_outputs()
        assert self.driver.finished.keys() == self.driver.requests.keys()
        stats = self.driver.core.stats()
        assert (stats.running, stats.waiting, stats.blocks_active, stats.block_refs) == (0, 0, 0, 0)
        assert stats.blocks_free + stats.blocks_evictable == stats.num_blocks
        assert (stats.swapped, stats.host_blocks_free) == (0, stats.host_blocks)

    # Operations: True when done

    def _add(self) -> bool:
        chance, mix = self.chance, self.mix
        if len(self.driver.requests) - len(self.driver.finished) >= mix.most_live:
            return False
        shared = chance.choice(self._texts)[: chance.choice(mix.lengths)]
        tail = [chance.randrange(mix.vocab_size) for _ in range(chance.choice(mix.tails))]
        fields = {
            "max_tokens": chance.choice(mix.max_tokens),
            "min_tokens": chance.choice([0, 0, 1, 4]),
            "stop_token_ids": frozenset(chance.choices(range(mix.vocab_size), k=chance.choice([0, 0, 1, 2]))),
            "sampling": SamplingParams(temperature=chance.choice([0.0, 1.0]), seed=chance.randrange(4)),
            "priority": chance.choice([0, 0, 0, 1, -1]),
            "namespace": chance.choice(mix.namespaces),
            "use_prefix_cache": chance.random() < 0.85,
            "n": chance.choice(mix.branches),
        }
        for copy in range(chance.choice([1, 1, 2, 3])):  # several with one new prefix at once
            self.driver.offer([*shared, *tail, *range(copy)], **fields)
        return True

    def _schedule(self) -> bool:
        if self.driver.kv is None:
            return False
        self.driver.schedule()
        return True

    def _answer(self) -> bool:
        if not self.driver.in_flight:
            return False
        self.driver.answer()
        return True

    def _go_on(self) -> bool:
        if self.driver.kv is None:
            return False
        self.driver.step()
        return True

    def _fail_rows(self) -> bool:
        if self.driver.kv is None:
            return False
        self.driver.fill()
        if not self.driver.in_flight:
            return False
        rows = self.driver.in_flight[0].plan.rows.tolist()
        self.driver.answer_failed(self.chance.sample(rows, min(len(rows), self.chance.choice([1, 2]))))
        return True

    def _too_few_tokens(self) -> bool:
        if not self.driver.in_flight:
            return False
        sent = self.driver.in_flight.popleft()
        kept = sent.tokens[: max(0, len(sent.tokens) - self.chance.randint(1, 3))]
        self.driver.apply(self.driver.result(sent, kept))
        return True

    def _wrong_order(self) -> bool:
        if len(self.driver.in_flight) < 2:
            return False
        later = self.driver.in_flight.pop()
        self.driver.apply(self.driver.result(later, later.tokens))
        self.driver.answer()
        return True

    def _odd_answer(self) -> bool:
        self.driver.odd_answer()
        return True

    def _fail_step(self) -> bool:
        if not self.driver.in_flight:
            return False
        self.driver.fail_step()
        return True

    def _lose_worker(self) -> bool:
        if self.driver.kv is None:
            return False
        self.driver.worker_lost()
        return True

    def _bring_worker(self) -> bool:
        if self.driver.kv is not None:
            return False
        self.driver.worker_ready()
        return True

    def _abort(self) -> bool:
        seq_id = self._recent()
        if seq_id is None:
            return False
        live = seq_id not in self.driver.finished
        assert self.driver.abort(seq_id) == live
        return True

    def _stop(self) -> bool:
        seq_id = self._recent()
        if seq_id is None or seq_id in self.driver.finished or not self.driver.outputs[seq_id]:
            return False
        output_len = max(1, len(self.driver.outputs[seq_id]) - self.chance.randint(0, 3))
        assert self.driver.stop(seq_id, output_len)
        assert self.driver.finished[seq_id].output_len == output_len
        return True

    def _flush(self) -> bool:
        self.driver.flush(self.chance.choice([None, *sorted(set(self.mix.namespaces))]))
        return True

    def _hold_transfers(self) -> bool:
        self.driver.holds_transfers = not self.driver.holds_transfers
        return True

    def _recent(self) -> int | None:
        if not self.driver.requests:
            return None
        recent = list(self.driver.requests)[-self.mix.most_live :]
        live = [seq_id for seq_id in recent if seq_id not in self.driver.finished]
        return self.chance.choice(live if live and self.chance.random() < 0.9 else recent)

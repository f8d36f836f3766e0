"""One campaign: a core with drawn settings under so many random operations, and to its end.

Owns the draw of pools, settings and requests; the driver checks every operation. Invariant: a campaign is a
function of its seed and its number of operations.
"""

import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import fields

from scheduler_svc.core.block_hash import HashFunction, xxh3_128
from scheduler_svc.core.plan import PreemptionMode, SchedulerConfig
from scheduler_svc.core.scheduler import Scheduler
from tests.fakes.core_driver import CoreDriver, Times
from tests.fakes.core_log import Log, replayed
from tests.fakes.failed_allocations import watched_admissions
from tests.fakes.index_copy import IndexCopy, entries_now
from tests.fakes.random_run import Mix, RandomRun, random_config

BLOCK_SIZES = (1, 2, 16, 256, 4096)
VOCAB = 40
_SHAPES = {  # pools in blocks, model length, lengths of shared beginnings, budgets
    1: ((1, 2, 3, 8, 24, 48), 40, (0, 0, 3, 7, 12, 20), (1, 5, 9, 32, 100, 100)),
    2: ((1, 2, 3, 8, 16, 32), 40, (0, 0, 3, 7, 12, 20), (2, 5, 9, 32, 100, 100)),
    16: ((1, 2, 3, 6, 12, 24), 120, (0, 0, 7, 15, 16, 17, 32, 48), (5, 16, 17, 64, 300)),
    256: ((1, 2, 3, 5, 8), 900, (0, 0, 30, 255, 256, 257, 512), (64, 256, 300, 1000)),
    4096: ((1, 2, 3), 9000, (0, 0, 0, 30, 200, 4095, 4096, 4097), (300, 2048, 4096)),
}
SHORT_OUTPUTS = (17, 5, 2, 1)


def weak_hash(data: bytes) -> bytes:
    """Three values in all: nearly every lookup meets a collision."""
    return bytes(15) + bytes([xxh3_128(data)[0] % 3])


def drawn_config(chance: random.Random, budgets: tuple[int, ...]) -> SchedulerConfig:
    budget = chance.choice(budgets)
    small = (1, 4) if budget <= 100 else ()  # a long prompt in chunks of 1 takes for ever
    chunk = chance.choice([0, 0, 0, budget // 2, *small])
    return random_config(
        chance,
        max_num_batched_tokens=budget,
        max_num_seqs=chance.choice([16, 8, 8, 4, 2, 1]),
        max_prefill_chunk=chunk if chunk <= budget else 0,
        prefix_cache=chance.random() < 0.9,
        preemption=chance.choice(list(PreemptionMode)),
    )


def run_campaign(seed: str, operations: int, block_size: int | None = None) -> Counter[str]:
    """What was done and what came of it. Raises AssertionError where anything is wrong."""
    chance = random.Random(seed)
    size = block_size or chance.choice(BLOCK_SIZES)
    pools, model_len, lengths, budgets = _SHAPES[size]
    hash_block: HashFunction = weak_hash if chance.random() < 0.15 else xxh3_128
    log = Log() if hash_block is xxh3_128 and chance.random() < 0.12 else None
    blocks = chance.choice(pools)
    driver = CoreDriver(
        blocks, size, drawn_config(chance, budgets), max_model_len=model_len,
        hash_block=hash_block, vocab_size=VOCAB, make_core=Scheduler if log is None else log.make_core,
        host_blocks=chance.choice([0, blocks // 2, blocks, 4 * blocks]),
        times=Times(moved_block=chance.choice([1e-5, 1e-2])),
    )  # fmt: skip
    outputs = (*SHORT_OUTPUTS, None) if size <= 16 else SHORT_OUTPUTS
    run = RandomRun(driver, chance, Mix(VOCAB, lengths=lengths, max_tokens=outputs))
    with ExitStack() as stack:
        if chance.random() < 0.25:
            stack.enter_context(watched_admissions())
        if chance.random() < 0.2:
            followed(run, operations)
        else:
            run.operate(operations)
        run.finish()
    counters = driver.core.stats().counters
    if log is not None:
        difference, _, _ = replayed(log.data())
        assert difference is None, difference
    tally = Counter({f"op {name}": count for name, count in run.done.items()})
    tally.update({field.name: getattr(counters, field.name) for field in fields(counters)})
    tally.update({f"block size {size}": operations, "operations": operations, "campaigns": 1})
    tally.update({"replayed campaigns": int(log is not None)})
    tally.update({"requests": len(driver.requests), "tokens checked": sum(map(len, driver.outputs.values()))})
    return tally


def followed(run: RandomRun, operations: int) -> None:
    """The same, with somebody who follows the prefix index and compares."""
    feed, copy = run.driver.core.kv_feed, IndexCopy()
    feed.follow(True)
    while operations:
        count = min(operations, run.chance.choice([1, 1, 3, 20]))
        run.operate(count)
        operations -= count
        for change in feed.take_changes():
            copy.take(change)
        assert copy.entries == entries_now(run.driver.core)

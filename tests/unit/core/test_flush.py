"""FlushPrefixCache in the core: what was computed before it is never found again, and nobody is hurt.

Edge case: cache reset while blocks are in use.
"""

import pytest

from scheduler_svc.core.plan import FinishReason, PreemptionMode, SchedulerConfig, SeqId
from tests.fakes.core_driver import CoreDriver

TEXT = list(range(1, 41))


def warm(core: CoreDriver, **fields: object) -> None:
    core.add([*TEXT[:16], 900], 1, **fields)
    core.run()


def cached(core: CoreDriver, **fields: object) -> int:
    """Prompt tokens that a new request finds."""
    seq_id = core.add([*TEXT[:16], 901], 1, **fields)
    core.run()
    return core.cached[seq_id]


def test_after_a_flush_nothing_is_found_and_all_idle_blocks_are_free() -> None:
    core = CoreDriver(32, 4)
    warm(core)
    entries = core.core.stats().prefix_entries
    assert core.flush() == entries >= 4
    stats = core.core.stats()
    assert (stats.prefix_entries, stats.blocks_evictable, stats.blocks_free) == (0, 0, 32)
    assert stats.counters.prefix_flushed_blocks == entries
    assert cached(core) == 0
    assert cached(core) == 16, "it fills again"


def test_a_flush_of_a_namespace_leaves_the_others() -> None:
    core = CoreDriver(64, 4)
    for namespace in ("", "a", "b"):
        warm(core, namespace=namespace)
    assert core.flush("a") >= 4
    assert [cached(core, namespace=n) for n in ("", "a", "b")] == [16, 0, 16]
    assert core.flush("nobody's") == 0
    assert core.flush("") > 0
    assert [cached(core, namespace=n) for n in ("", "b")] == [0, 16]


def test_a_flush_while_blocks_are_in_use_leaves_them_to_their_holders() -> None:
    core = CoreDriver(32, 4)
    holders = [core.add([*TEXT[:16], 900 + i], 12) for i in range(2)]
    core.step()
    before = [block for block, *_ in core.core.sequence_blocks(SeqId(holders[0]))]
    assert core.flush() >= 4
    after = core.core.sequence_blocks(SeqId(holders[0]))
    assert [block for block, *_ in after][: len(before)] == before
    assert [key for *_, key in after] == [""] * len(after)
    assert core.core.stats().blocks_shared == 4, "shared, though not findable"
    assert cached(core) == 0, "not findable while they run"
    core.run()
    core.check_outputs()
    assert all(core.reason(seq_id) is FinishReason.LENGTH for seq_id in holders)


def test_what_a_sequence_computed_before_a_flush_is_not_published_after_it() -> None:
    core = CoreDriver(64, 4, SchedulerConfig(max_num_batched_tokens=6))
    writer = core.add([*TEXT[:15], 900], 9)
    core.step()
    core.flush()
    core.run()
    assert core.reason(writer) is FinishReason.LENGTH
    assert core.core.stats().prefix_entries == 0
    assert cached(core) == 0


@pytest.mark.parametrize("namespace", [None, ""])
def test_a_flush_between_a_plan_and_its_failure_withdraws_nothing_twice(namespace: str | None) -> None:
    core = CoreDriver(32, 4)
    writer = core.add([*TEXT[:8], 900], 5)
    reader = core.add([*TEXT[:16], 901], 5)
    core.fill()
    core.flush(namespace)
    core.answer_failed([core.plans[0].setups[0].row])
    core.run()
    assert core.reason(writer) is FinishReason.ERROR
    assert core.reason(reader) is FinishReason.LENGTH
    core.check_outputs()


def test_a_preempted_sequence_computes_anew_what_was_flushed() -> None:
    core = CoreDriver(9, 2, SchedulerConfig(watermark_blocks=0))
    first, second = core.add(TEXT[:5], 9), core.add(TEXT[10:15], 9)
    while not core.core.stats().counters.preemptions:
        core.step()
    core.flush()
    core.run()
    assert core.core.stats().counters.recompute_hit_tokens == 0
    assert {core.reason(seq_id) for seq_id in (first, second)} == {FinishReason.LENGTH}
    core.check_outputs()


def test_a_flush_without_a_worker_forgets_nothing() -> None:
    core = CoreDriver(8, 2, ready=False)
    assert core.flush() == 0


def test_what_was_computed_before_a_flush_is_not_found_when_it_was_swapped_out_since() -> None:
    config = SchedulerConfig(preemption=PreemptionMode.SWAP, max_num_seqs=4)
    core = CoreDriver(12, 4, config, host_blocks=40)
    core.add(range(200, 216), 30)
    swapped = core.add(range(100, 116), 28)
    for _ in range(2):
        core.step()
    assert swapped not in core.swapped_out
    core.flush()
    core.run()
    assert swapped in core.swapped_out
    later = core.add([*range(100, 116), 1], 2)
    core.run()
    assert core.cached[later] == 0
    core.check_outputs()
